//! SEEK_DATA and SEEK_HOLE with dirty pages in the kernel.
//!
//! The kernel writes its page cache back at any time, so a hole of the volume may contain written data. Before a
//! hole is reported, the kernel writes back the pages over it (FUSE_NOTIFY_INVAL_INODE), and the volume is searched
//! again.
//!
//! Invariants:
//!
//! * A separate thread sends the notification. It returns after the WRITE requests that it causes, which the other
//!   threads answer.
//! * After the notification no page that was dirty when the search began is missing from the volume.
//!
//! Kernels before protocol 7.44 (Linux 6.16) copy pages and do not wait for the copies. For these LSEEK is
//! unsupported, and every file counts as data. The same holds after a failed WRITE: the kernel keeps the page and
//! treats it as written.

use super::server::{PendingSeek, SeekRequest, VolumeServer};
use super::service::Work;
use rustix::fd::AsFd;
use rustix::io::Errno;
use std::io::IoSlice;
use std::ops::Range;
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{MutexGuard, PoisonError};
use tuff_fuse::filesystem::{Result, Seek};
use tuff_fuse::protocol::{LseekOut, NOTIFY_INVAL_INODE, NotifyInvalInode, OutHeader, op};
use tuff_fuse::reply::Reply;
use tuff_fuse::transport::replies::{PendingReply, ReplySender};
use tuff_iplfs::{Nid, Volume};
use zerocopy::IntoBytes;

/// End of a hole without data after it.
const NO_END: u64 = u64::MAX;

impl VolumeServer {
    pub(super) fn seeks(&self) -> MutexGuard<'_, Option<Sender<PendingSeek>>> {
        self.seeks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers LSEEK at once, or in [`finish_seeks`](Self::finish_seeks) if the kernel has to write pages back first.
    pub(super) fn begin_seek<'a>(
        &self,
        seek: SeekRequest,
        pending: PendingReply,
        out: &'a mut [u8],
    ) -> Result<Reply<'a, Work>> {
        self.guarded(op::LSEEK, || {
            if !self.reports_holes() {
                return Err(Errno::NOSYS);
            }
            let found = seek.run(self.lock()?.volume()?);
            let unsure = seek.unsure(found)?;
            if unsure.is_empty() {
                return Reply::structure(out, &LseekOut { offset: found? });
            }
            let pending = PendingSeek {
                seek,
                unsure,
                pending,
            };
            let seeks = self.seeks();
            let seeks = seeks.as_ref().ok_or(Errno::IO)?;
            seeks.send(pending).map_err(|_| Errno::IO)?;
            Ok(Reply::Later(None))
        })
    }

    /// Answers searches that wait for write-back, until the session ends.
    pub(super) fn finish_seeks(&self, replies: &ReplySender<'_>, pending: &Receiver<PendingSeek>) {
        while let Ok(PendingSeek {
            seek,
            unsure,
            pending,
        }) = pending.recv()
        {
            let found = write_back(replies, seek.node, unsure).and_then(|()| {
                self.guarded(op::LSEEK, || {
                    if !self.reports_holes() {
                        return Err(Errno::NOSYS);
                    }
                    seek.run(self.lock()?.volume()?)
                })
            });
            let found = found.map(|offset| LseekOut { offset });
            let body = found.as_ref().map(|out| out.as_bytes());
            replies.send(pending, body.map_err(|e| *e));
        }
    }
}

impl SeekRequest {
    /// Searches the volume without the kernel's pages.
    fn run(&self, volume: &mut Volume) -> Result<u64> {
        Ok(match self.what {
            Seek::Hole => volume.seek_hole(self.node, self.offset)?,
            Seek::Data => volume.seek_data(self.node, self.offset)?,
        })
    }

    /// Returns the range that may change the result `found`: the skipped hole, or everything from the first hole on.
    fn unsure(&self, found: Result<u64>) -> Result<Range<u64>> {
        let found = match found {
            // The kernel's end of the file may lie after the volume's.
            Err(Errno::NXIO) => None,
            found => Some(found?),
        };
        Ok(match self.what {
            Seek::Hole => found.unwrap_or(self.offset)..NO_END,
            Seek::Data => self.offset..found.unwrap_or(NO_END),
        })
    }
}

/// Makes the kernel write back and drop the pages of a range, and waits for it.
fn write_back(fuse: &impl AsFd, node: Nid, range: Range<u64>) -> Result<()> {
    let notice = NotifyInvalInode {
        node: u64::from(node.0),
        offset: range.start,
        len: match range.end {
            NO_END => 0,
            end => end - range.start,
        },
    };
    let header = OutHeader {
        len: (size_of::<OutHeader>() + size_of::<NotifyInvalInode>()) as u32, // fits: both are short
        error: NOTIFY_INVAL_INODE,
        unique: 0,
    };
    let parts = [header.as_bytes(), notice.as_bytes()].map(IoSlice::new);
    match rustix::io::retry_on_intr(|| rustix::io::writev(fuse, &parts)) {
        // The kernel has forgotten the inode and its pages.
        Ok(_) | Err(Errno::NOENT) => Ok(()),
        // The kernel does not support this notification, so holes are unknown.
        Err(Errno::INVAL | Errno::NOSYS) => Err(Errno::NOSYS),
        Err(e) => Err(e),
    }
}
