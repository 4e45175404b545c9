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

use super::fields::Fields;
use super::reply::{PendingReply, ReplySender};
use super::seek::{PendingSeek, Seek, write_back};
use super::server::VolumeServer;
use rustix::fd::AsFd;
use rustix::io::Errno;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, MutexGuard, PoisonError};
use tuff_fuse::filesystem::Result;
use tuff_fuse::protocol::{self, InHeader, LseekOut};
use tuff_fuse::transport::uring::Rings;
use zerocopy::IntoBytes;

impl VolumeServer {
    pub(super) fn seeks(&self) -> MutexGuard<'_, Option<Sender<PendingSeek>>> {
        self.seeks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers LSEEK. Returns None if the kernel has to write pages back first. [`finish_seeks`](Self::finish_seeks)
    /// answers then.
    pub(super) fn begin_seek(
        &self,
        header: &InHeader,
        f: Fields<'_>,
        pending: PendingReply,
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
                pending,
            };
            let seeks = self.seeks();
            let seeks = seeks.as_ref().ok_or(Errno::IO)?;
            seeks.send(pending).map_err(|_| Errno::IO)?;
            Ok(None)
        });
        begun.transpose()
    }

    /// Answers searches that wait for write-back, until the mount ends.
    pub(super) fn finish_seeks(
        &self,
        fuse: impl AsFd,
        rings: Option<&Arc<Rings>>,
        pending: &Receiver<PendingSeek>,
    ) {
        let replies = ReplySender::new(fuse.as_fd(), rings);
        while let Ok(PendingSeek {
            seek,
            unsure,
            pending,
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
            replies.send_body(pending, body.map_err(|e| *e));
        }
    }
}
