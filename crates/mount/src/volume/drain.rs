//! Drain: everything that programs have written becomes durable, dirty pages of the kernel included.
//!
//! The kernel sends SYNCFS only for mounts that have a block device, and `sync` does not wait for pages of FUSE. So a client asks
//! for it by an attribute of the root (see `control`).
//!
//! ```text
//!  client ─► syncfs: write-back begins ─► GETXATTR ─► drainer: write-back of every known file, waited for ─► checkpoint ─► reply
//!                                       └► SYNCFS ──────┘
//! ```
//!
//! A kernel that sends SYNCFS may do so before its last WRITE requests (Linux 6.18), so that is drained, too.
//!
//! Invariants:
//!
//! * A separate thread drains. Serving threads answer the WRITE requests that it causes.
//! * What a program wrote before the request is durable when it is answered. The kernel may keep nothing of it: an inode with dirty
//!   pages is known to the kernel, and so to this server.
//! * Only root and the user who mounted may ask. A drain costs time, and drops the page cache.
//!
//! Kernels before protocol 7.44 (Linux 6.16) do not wait for pages that they copy. Their requests are refused.

use super::server::{DrainReply, SEEK_MINOR_MIN, VolumeServer};
use super::service::Work;
use rustix::fd::AsFd;
use rustix::io::Errno;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;
use tuff_fuse::filesystem::Result;
use tuff_fuse::protocol::op;
use tuff_fuse::reply::Reply;
use tuff_fuse::request::Request;
use tuff_fuse::transport::replies::ReplySender;

impl VolumeServer {
    pub(super) fn drains(&self) -> MutexGuard<'_, Option<Sender<DrainReply>>> {
        self.drains.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers SYNCFS after a drain, which another thread makes.
    pub(super) fn begin_syncfs<'a>(&self, request: &Request<'_>) -> Result<Reply<'a, Work>> {
        let pending = request.pending();
        if self.negotiation.minor() < SEEK_MINOR_MIN {
            return Ok(Reply::Later(Some(Work::Sync(request.header, pending))));
        }
        self.enter_drain(DrainReply::Kernel(pending))?;
        Ok(Reply::Later(None))
    }

    pub(super) fn enter_drain(&self, reply: DrainReply) -> Result<()> {
        let drains = self.drains();
        let drains = drains.as_ref().ok_or(Errno::IO)?;
        drains.send(reply).map_err(|_| Errno::IO)
    }

    /// Answers requests for drains, until the session ends.
    pub(super) fn finish_drains(&self, replies: &ReplySender<'_>, waiting: &Receiver<DrainReply>) {
        while let Ok(reply) = waiting.recv() {
            match reply {
                DrainReply::Kernel(pending) => {
                    let done = self.guarded(op::SYNCFS, || self.drain(replies));
                    replies.send(pending, done.map(|()| &[][..]));
                }
                DrainReply::Control(pending, control) => {
                    let done = self.guarded(op::GETXATTR, || self.control(replies, &control));
                    replies.send(pending, done.as_deref().map_err(|e| *e));
                }
                DrainReply::Thread(thread) => {
                    let _ = self.guarded(op::DESTROY, || self.drain(replies));
                    // The thread may have stopped to wait.
                    let _ = thread.send(());
                }
            }
        }
    }

    /// Makes everything durable that programs have written before the call. Blocks for write-back, so it runs in a thread of its
    /// own and without locks.
    ///
    /// # Errors
    /// Fails if not everything could be made durable.
    pub(super) fn drain(&self, fuse: &impl AsFd) -> Result<()> {
        self.write_back_all(fuse)?;
        self.sync()
    }

    /// Drains in the drainer thread. Returns after `time_max` in any case.
    pub(super) fn drain_for(&self, time_max: Duration) {
        let (done, waits) = channel();
        if self.enter_drain(DrainReply::Thread(done)).is_ok() {
            let _ = waits.recv_timeout(time_max);
        }
    }
}
