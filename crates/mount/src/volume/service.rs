//! Volume as a service: answers at once, or later after a flush, a checkpoint or write-back.
//!
//! ```text
//!  request ─► answered under the volume's lock
//!     │ fsync, syncfs
//!     └► thread that may block ─► flush or checkpoint ─► reply
//! ```

use super::control_request::CONTROL_PREFIX;
use super::fields::nid;
use super::server::{SeekRequest, StaleNotice, VolumeServer};
use rustix::io::Errno;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, mpsc};
use tuff_fuse::filesystem::Result;
use tuff_fuse::log::Log;
use tuff_fuse::negotiation::Negotiation;
use tuff_fuse::protocol::{InHeader, ROOT, op};
use tuff_fuse::reply::Reply;
use tuff_fuse::request::{Operation, Request};
use tuff_fuse::service::{Background, Service};
use tuff_fuse::transport::replies::{PendingReply, ReplySender};
use tuff_iplfs::Fsync;

/// Part of a request that waits for the device.
pub enum Work {
    /// Requests wait for a flush, and none is running.
    Flush,
    /// An fsync needs a checkpoint.
    Fsync(InHeader, PendingReply),
    /// All changes have to become durable.
    Sync(InHeader, PendingReply),
    /// The filesystem ends, and the kernel waits until the volume is unmounted.
    End(InHeader, PendingReply),
}

impl Service for VolumeServer {
    type Worker = StaleNotice;
    type Work = Work;
    const WRITABLE: bool = true;

    fn negotiation(&self) -> &Negotiation {
        &self.negotiation
    }

    fn log(&self) -> &Log {
        &self.log
    }

    fn worker(&self, _: usize, _: bool) -> StaleNotice {
        StaleNotice::default()
    }

    fn handle<'a>(
        &self,
        worker: &'a mut StaleNotice,
        request: &Request<'_>,
        out: &'a mut [u8],
    ) -> Reply<'a, Work> {
        let (header, pending) = (request.header, request.pending());
        let reply = match request.operation {
            Ok(Operation::Fsync) => match self.begin_fsync(&header) {
                Ok(Fsync::Durable) => Ok(Reply::empty()),
                Ok(Fsync::Flush) => Ok(Reply::Later(
                    self.flushes.enter(pending).then_some(Work::Flush),
                )),
                Ok(Fsync::Checkpoint) => Ok(Reply::Later(Some(Work::Fsync(header, pending)))),
                Err(e) => Err(e),
            },
            // The kernel sends these only for mounts that have a block device.
            Ok(Operation::Syncfs) => self.begin_syncfs(request),
            Ok(Operation::Destroy) => Ok(Reply::Later(Some(Work::End(header, pending)))),
            Ok(Operation::Getxattr(size, name))
                if header.node == ROOT && name.starts_with(CONTROL_PREFIX) =>
            {
                self.begin_control(request, name, size)
            }
            Ok(Operation::Getattr(true)) => self.begin_write(worker, &header, pending, out),
            Ok(Operation::Lseek(offset, what)) => nid(header.node).and_then(|node| {
                let seek = SeekRequest { node, offset, what };
                self.begin_seek(seek, pending, out)
            }),
            _ => self.guarded(header.opcode, || self.answer(worker, request, out)),
        };
        reply.unwrap_or_else(Reply::Error)
    }

    fn replied(&self, worker: &mut StaleNotice, send: impl FnOnce()) {
        if let Some(node) = worker.0.take() {
            send();
            self.attributes_are_stale(node);
        }
    }

    fn run(&self, work: Work, replies: &ReplySender<'_>) {
        match work {
            Work::Flush => self.flush(replies),
            Work::Fsync(header, pending) => self.fsync_by_checkpoint(&header, pending, replies),
            Work::Sync(header, pending) => {
                let done = self.guarded(header.opcode, || self.sync());
                replies.send(pending, done.map(|()| &[][..]));
            }
            Work::End(header, pending) => {
                let done = self.guarded(header.opcode, || {
                    self.end_session();
                    Ok(())
                });
                replies.send(pending, done.map(|()| &[][..]));
            }
        }
    }

    fn background(self: &Arc<Self>) -> Vec<(&'static str, Background)> {
        let (write_backs, pending) = mpsc::channel();
        *self.write_backs() = Some(write_backs);
        let (drains, waiting) = mpsc::channel();
        *self.drains() = Some(drains);
        let [keeper, discarder, writer, notifier, drainer] = std::array::from_fn(|_| self.clone());
        vec![
            ("keeper", Box::new(move |_| keeper.keep())),
            ("discards", Box::new(move |_| discarder.dispatch_discards())),
            ("writer", Box::new(move |_| writer.flush_early())),
            (
                "write-back",
                Box::new(move |replies| notifier.run_write_backs(replies, &pending)),
            ),
            (
                "drainer",
                Box::new(move |replies| drainer.finish_drains(replies, &waiting)),
            ),
        ]
    }

    fn end(&self) {
        self.keep_state().ended = true;
        self.wake.notify_all();
        self.early_flush().ended = true;
        self.early_flush_wake.notify_all();
        *self.write_backs() = None;
        *self.notifier() = None;
        *self.drains() = None;
    }
}

impl VolumeServer {
    /// Runs a part of a request that may panic.
    pub(super) fn guarded<T>(&self, opcode: u32, answer: impl FnOnce() -> Result<T>) -> Result<T> {
        catch_unwind(AssertUnwindSafe(answer)).unwrap_or_else(|_| {
            let what = op::name(opcode);
            self.log.line(format_args!(
                "bug: {what} panicked; all that follows is EIO"
            ));
            Err(Errno::IO)
        })
    }

    /// Writes the changes of an fsync, if that does not block.
    fn begin_fsync(&self, header: &InHeader) -> Result<Fsync> {
        self.guarded(header.opcode, || {
            let node = nid(header.node)?;
            let mut core = self.lock()?;
            let volume = core.volume()?;
            if volume.is_read_only() {
                return Ok(Fsync::Durable);
            }
            Ok(volume.begin_fsync(node)?)
        })
    }

    /// Answers an fsync that needs a checkpoint.
    fn fsync_by_checkpoint(
        &self,
        header: &InHeader,
        pending: PendingReply,
        replies: &ReplySender<'_>,
    ) {
        match self.guarded(header.opcode, || {
            self.fsync_with_checkpoint(nid(header.node)?)
        }) {
            Ok(true) if self.flushes.enter(pending) => self.flush(replies),
            Ok(true) => {}
            done => replies.send(pending, done.map(|_| &[][..])),
        }
        // Remaining discards follow after the next checkpoint.
        let _ = self.send_discards();
    }

    /// Flushes until no request waits.
    fn flush(&self, replies: &ReplySender<'_>) {
        self.flushes.run(
            || self.device.flush(),
            |group, result| {
                if let Err(e) = result {
                    self.flush_failed(e);
                }
                for pending in group {
                    let done = result.as_ref().map(|()| &[][..]);
                    replies.send(*pending, done.map_err(|_| Errno::IO));
                }
            },
        );
    }
}
