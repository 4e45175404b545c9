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
//!   kernel after a WRITE that errno_of, since it keeps the page and takes it for written.

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

    /// Answers LSEEK. `None` if the answer has to wait until the kernel has written pages back; [`finish_seeks`](Self::finish_seeks) sends it.
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

    /// Answers searches that wait for the kernel, until the mount ends.
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
