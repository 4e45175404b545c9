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

use super::seek::{PendingSeek, Seek, write_back};
use super::server::VolumeServer;
use super::service::Work;
use rustix::io::Errno;
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{MutexGuard, PoisonError};
use tuff_fuse::filesystem::{Parts, Result};
use tuff_fuse::protocol::{self, LseekOut};
use tuff_fuse::service::{Reply, Request};
use tuff_fuse::transport::replies::ReplySender;
use zerocopy::IntoBytes;

impl VolumeServer {
    pub(super) fn seeks(&self) -> MutexGuard<'_, Option<Sender<PendingSeek>>> {
        self.seeks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers LSEEK at once, or in [`finish_seeks`](Self::finish_seeks) if the kernel has to write pages back first.
    pub(super) fn begin_seek<'a>(
        &self,
        request: &Request<'_>,
        out: &'a mut [u8],
    ) -> Result<Reply<'a, Work>> {
        self.guarded(request.header.opcode, || {
            if !self.reports_holes() {
                return Err(Errno::NOSYS);
            }
            let seek = Seek::new(&request.header, request.fields)?;
            let found = seek.run(self.lock()?.volume()?);
            let unsure = seek.unsure(found)?;
            if unsure.is_empty() {
                let out = out.get_mut(..size_of::<LseekOut>()).ok_or(Errno::IO)?;
                out.copy_from_slice(LseekOut { offset: found? }.as_bytes());
                return Ok(Reply::Body(Parts::One(out)));
            }
            let pending = PendingSeek {
                seek,
                unsure,
                pending: request.pending(),
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
                self.guarded(protocol::op::LSEEK, || {
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
