//! SEEK_DATA and SEEK_HOLE while the kernel has pages that it has not written back.
//!
//! The kernel writes its page cache back when it likes, so a hole of the volume may be data that a process has already written. Before a hole is
//! reported, the kernel is told to write back the pages over it (FUSE_NOTIFY_INVAL_INODE), and the volume is searched again.
//!
//! Invariants:
//!
//! * The notice is sent by a thread of its own: it returns when the WRITE requests that it causes are answered, which is the business of all
//!   other threads.
//! * After the notice no page that was dirty when the search began is missing from the volume. Kernels before protocol 7.44 (Linux 6.16) copy
//!   pages that they write back, and do not wait for the copies: they are told that there is no LSEEK, and take every file for data. So is every
//!   kernel after a WRITE that failed, since it keeps the page and takes it for written.

use super::VolumeServer;
use super::request::{Fields, failed, nid};
use super::serve::{Asker, Teller};
use rustix::fd::AsFd;
use rustix::io::Errno;
use std::io::IoSlice;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, MutexGuard, PoisonError};
use tuff_fuse::filesystem::Result;
use tuff_fuse::protocol::{self, InHeader, LseekOut, NotifyInvalInode, OutHeader};
use tuff_fuse::transport::uring::Rings;
use tuff_iplfs::{Nid, Volume};
use zerocopy::IntoBytes;

/// Minor version of the first protocol whose kernel waits for all pages under write-back.
pub(super) const MINOR_MIN: u32 = 44;

/// End of a hole without data after it.
const NO_END: u64 = u64::MAX;

/// Request LSEEK.
#[derive(Clone, Copy)]
struct Seek {
    node: Nid,
    offset: u64,
    /// SEEK_HOLE, otherwise SEEK_DATA.
    hole: bool,
}

/// Search that waits until the kernel has written pages back.
pub(super) struct PendingSeek {
    seek: Seek,
    /// Range of the file that may hold data only the kernel has. Unit: bytes.
    unsure: Range<u64>,
    asker: Asker,
}

impl Seek {
    fn new(header: &InHeader, mut f: Fields<'_>) -> Result<Self> {
        let (_, offset, whence) = (f.u64()?, f.u64()?, f.u32()?);
        let hole = match whence {
            protocol::SEEK_DATA => false,
            protocol::SEEK_HOLE => true,
            _ => return Err(Errno::INVAL),
        };
        Ok(Self {
            node: nid(header.node)?,
            offset,
            hole,
        })
    }

    /// Searches the volume.
    fn run(&self, volume: &mut Volume) -> Result<u64> {
        if self.hole {
            volume.seek_hole(self.node, self.offset).map_err(failed)
        } else {
            volume.seek_data(self.node, self.offset).map_err(failed)
        }
    }

    /// The range that decides, where the volume has found `found`: the hole that was skipped, or everything from the first hole on.
    fn unsure(&self, found: Result<u64>) -> Result<Range<u64>> {
        let found = match found {
            // The volume's end may lie before the kernel's.
            Err(Errno::NXIO) => None,
            found => Some(found?),
        };
        Ok(match self.hole {
            true => found.unwrap_or(self.offset)..NO_END,
            false => self.offset..found.unwrap_or(NO_END),
        })
    }
}

impl VolumeServer {
    pub(super) fn seeks(&self) -> MutexGuard<'_, Option<Sender<PendingSeek>>> {
        self.seeks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers LSEEK. `None` if the answer has to wait until the kernel has written pages back; [`finish_seeks`](Self::finish_seeks) sends it.
    pub(super) fn begin_seek(
        &self,
        header: &InHeader,
        f: Fields<'_>,
        asker: Asker,
    ) -> Option<Result<LseekOut>> {
        let begun = self.guarded(header.opcode, || {
            if !self.reports_holes.load(Relaxed) {
                return Err(Errno::NOSYS);
            }
            let seek = Seek::new(header, f)?;
            let found = seek.run(self.lock()?.volume()?);
            let unsure = seek.unsure(found)?;
            if unsure.is_empty() {
                return Ok(Some(LseekOut { offset: found? }));
            }
            let pending = PendingSeek {
                seek,
                unsure,
                asker,
            };
            let seeks = self.seeks();
            let seeks = seeks.as_ref().ok_or(Errno::IO)?;
            seeks.send(pending).map_err(|_| Errno::IO)?;
            Ok(None)
        });
        begun.transpose()
    }

    /// Answers searches that wait for the kernel, until the mount ends.
    pub(super) fn finish_seeks(
        &self,
        fuse: impl AsFd,
        rings: Option<&Arc<Rings>>,
        pending: &Receiver<PendingSeek>,
    ) {
        let teller = Teller::new(fuse.as_fd(), rings);
        while let Ok(PendingSeek {
            seek,
            unsure,
            asker,
        }) = pending.recv()
        {
            let found = write_back(&fuse, seek.node, unsure).and_then(|()| {
                self.guarded(protocol::op::LSEEK, || {
                    if !self.reports_holes.load(Relaxed) {
                        return Err(Errno::NOSYS);
                    }
                    seek.run(self.lock()?.volume()?)
                })
            });
            let found = found.map(|offset| LseekOut { offset });
            let body = found.as_ref().map(|out| out.as_bytes());
            teller.tell_body(asker, body.map_err(|e| *e));
        }
    }
}

/// Has the kernel write back and drop the pages of a range, and waits for it.
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
        error: protocol::NOTIFY_INVAL_INODE,
        unique: 0,
    };
    let parts = [header.as_bytes(), notice.as_bytes()].map(IoSlice::new);
    match rustix::io::retry_on_intr(|| rustix::io::writev(fuse, &parts)) {
        // The kernel has forgotten the inode, and its pages with it.
        Ok(_) | Err(Errno::NOENT) => Ok(()),
        // It takes no such notice: nothing can be said of holes.
        Err(Errno::INVAL | Errno::NOSYS) => Err(Errno::NOSYS),
        Err(e) => Err(e),
    }
}
