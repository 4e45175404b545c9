//! SEEK_DATA and SEEK_HOLE with dirty pages in the kernel.
//!
//! The kernel writes its page cache back at any time, so a hole of the volume may contain written data. Before a
//! hole is reported, the kernel writes back the pages over it (FUSE_NOTIFY_INVAL_INODE), and the volume is searched
//! again.
//!
//! Invariant:
//!
//! * After the notification no page that was dirty when the search began is missing from the volume.
//!
//! Kernels before protocol 7.44 (Linux 6.16) copy pages and do not wait for the copies. For these LSEEK is
//! unsupported, and every file counts as data. The same holds after a failed WRITE: the kernel keeps the page and
//! treats it as written.

use super::server::{PendingSeek, PendingWriteBack, SeekRequest, VolumeServer};
use super::service::Work;
use super::write_back::{NO_END, write_back};
use rustix::io::Errno;
use std::ops::Range;
use tuff_fuse::filesystem::{Result, Seek};
use tuff_fuse::protocol::{LseekOut, op};
use tuff_fuse::reply::Reply;
use tuff_fuse::transport::replies::{PendingReply, ReplySender};
use tuff_iplfs::Volume;

impl VolumeServer {
    /// Answers LSEEK at once, or in [`finish_seek`](Self::finish_seek) if the kernel has to write pages back first.
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
            self.send_write_back(PendingWriteBack::Seek(pending))?;
            Ok(Reply::Later(None))
        })
    }

    /// Answers a search that waits for write-back.
    pub(super) fn finish_seek(&self, replies: &ReplySender<'_>, waiting: PendingSeek) {
        let PendingSeek {
            seek,
            unsure,
            pending,
        } = waiting;
        let found = write_back(replies, seek.node, unsure).and_then(|()| {
            self.guarded(op::LSEEK, || {
                if !self.reports_holes() {
                    return Err(Errno::NOSYS);
                }
                seek.run(self.lock()?.volume()?)
            })
        });
        let found = found.map(|offset| LseekOut { offset });
        replies.send_structure(pending, found);
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
