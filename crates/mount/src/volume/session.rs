//! Reception of requests and dispatch of those that wait.
//!
//! With io_uring a request is answered on the client's processor ([`uring`](tuff_fuse::transport::uring)). A ring's
//! thread must not block its queue. So requests that wait for the device go to a second thread on the same
//! processor, where a wake-up is cheapest:
//!
//! ```text
//!  request ─► thread of the ring ─► answered under the volume's lock
//!                 │ fsync, syncfs
//!                 └► second thread ─► flush; the thread of the ring sends the reply
//!  FORGET ─► /dev/fuse, in batches
//! ```
//!
//! Without rings every thread reads `/dev/fuse` and answers what it read.

use super::fields::{Fields, WRITE_MAX, errno_of, nid};
use super::operations::Reply;
use super::reply::{PendingReply, ReplySender, header_of, send};
use super::server::VolumeServer;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, Sender};
use std::time::Duration;
use tuff_fuse::filesystem::Result;
use tuff_fuse::handler::Request;
use tuff_fuse::log::Log;
use tuff_fuse::protocol::{InHeader, OutHeader, op};
use tuff_fuse::schedule::affinity::ClientAffinity;
use tuff_fuse::schedule::cpu_latency::CpuLatency;
use tuff_fuse::transport::uring::{RingRequest, RingService, Rings, stay_on};
use tuff_iplfs::Fsync;
use zerocopy::IntoBytes;

/// Buffer for a request with the longest write.
const REQUEST_MAX: usize = WRITE_MAX + (16 << 10);
/// Interval in which FORGETs are collected: a wake-up for each would cost more than its work.
const FORGET_INTERVAL: Duration = Duration::from_millis(1);
/// Maximum number of checks for FORGETs before a request fails for lack of space.
const FORGET_ROUNDS: usize = 200;

/// Buffers of a thread that reads the device. Memory is allocated when it is first touched.
pub(super) struct Buffers<'a> {
    request: Vec<u8>,
    reply: Vec<u8>,
    cpu_latency: Option<&'a CpuLatency>,
}

impl<'a> Buffers<'a> {
    /// Creates buffers. The CPU latency limit notes each request.
    pub(super) fn new(cpu_latency: Option<&'a CpuLatency>) -> Self {
        Self {
            request: vec![0; REQUEST_MAX],
            reply: vec![0; WRITE_MAX],
            cpu_latency,
        }
    }
}

/// Request that a ring's thread hands to its second thread.
pub(super) enum Wait {
    /// Requests wait for a flush, and none is running.
    Flush,
    /// An fsync needs a checkpoint.
    Fsync(InHeader, PendingReply),
    /// All changes have to become durable.
    Sync(InHeader, PendingReply),
}

/// Returns true for requests that make one file durable.
fn is_fsync(opcode: u32) -> bool {
    matches!(opcode, op::FSYNC | op::FSYNCDIR)
}

/// Returns true for requests that make all changes durable. The kernel sends SYNCFS only to virtiofs and fuseblk.
fn is_sync(opcode: u32) -> bool {
    matches!(opcode, op::SYNCFS | op::DESTROY)
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
            volume.begin_fsync(node).map_err(errno_of)
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
            done => replies.tell(pending, done.map(|_| ())),
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
                    replies.tell(
                        *pending,
                        result.as_ref().map_or(Err(Errno::IO), |()| Ok(())),
                    );
                }
            },
        );
    }

    /// Reads the device and answers requests until the filesystem is unmounted. With `rings`, only the other
    /// requests arrive there.
    pub(super) fn serve(
        &self,
        fuse: impl AsFd,
        rings: Option<&Arc<Rings>>,
        cpu_latency: Option<&CpuLatency>,
    ) {
        let mut buffers = Buffers::new(cpu_latency);
        let mut affinity = ClientAffinity::default();
        while let Some((opcode, _)) = self.step(&fuse, &mut buffers, &mut affinity, rings) {
            let forgets = matches!(opcode, op::FORGET | op::BATCH_FORGET);
            if forgets && rings.is_some_and(|rings| !rings.failed()) {
                self.forgetting.store(false, Relaxed);
                std::thread::sleep(FORGET_INTERVAL);
            }
        }
    }

    /// Answers one request. Returns its operation and success, or None at the end of the session.
    pub(super) fn step(
        &self,
        fuse: &impl AsFd,
        buffers: &mut Buffers<'_>,
        affinity: &mut ClientAffinity,
        rings: Option<&Arc<Rings>>,
    ) -> Option<(u32, bool)> {
        let n = match rustix::io::read(fuse, &mut buffers.request[..]) {
            Ok(n) => n,
            Err(Errno::INTR | Errno::NOENT | Errno::AGAIN) => return Some((0, true)),
            Err(_) => return None,
        };
        let request = Request::new(&buffers.request[..n])?;
        let header = request.header;
        match rings {
            Some(_) => self.forgetting.store(true, Relaxed),
            None => {
                affinity.choose(&request);
                if let Some(cpu_latency) = buffers.cpu_latency {
                    cpu_latency.note_request();
                }
            }
        }
        let replies = ReplySender::new(fuse.as_fd(), rings);
        let pending = PendingReply {
            unique: header.unique,
            slot: None,
        };
        if is_fsync(header.opcode) {
            match self.begin_fsync(&header) {
                Ok(Fsync::Flush) if self.flushes.enter(pending) => self.flush(&replies),
                Ok(Fsync::Flush) => {}
                Ok(Fsync::Checkpoint) => self.fsync_by_checkpoint(&header, pending, &replies),
                done => replies.tell(pending, done.map(|_| ())),
            }
            return Some((header.opcode, true));
        }
        if is_sync(header.opcode) {
            replies.tell(pending, self.sync(&header));
            return Some((header.opcode, true));
        }
        if header.opcode == op::LSEEK {
            if let Some(found) = self.begin_seek(&header, Fields(request.body, &[]), pending) {
                replies.send_body(
                    pending,
                    found.as_ref().map(|out| out.as_bytes()).map_err(|e| *e),
                );
            }
            return Some((header.opcode, true));
        }
        let reply = self.guarded(header.opcode, || {
            self.answer(&header, Fields(request.body, &[]), &mut buffers.reply)
        });
        let body = match &reply {
            Ok(Reply::Nothing) => return Some((header.opcode, true)),
            Ok(Reply::Body(body)) => Ok(&body[..]),
            Ok(Reply::InPlace(len)) => Ok(&buffers.reply[..*len]),
            Err(e) => Err(*e),
        };
        send(fuse.as_fd(), header.unique, body).ok()?;
        Some((header.opcode, body.is_ok()))
    }

    /// Waits until pending FORGETs are processed, which may release the required space.
    fn forget_all(&self, fuse: BorrowedFd<'_>) {
        for _ in 0..FORGET_ROUNDS {
            std::thread::sleep(FORGET_INTERVAL);
            let mut device = [PollFd::from_borrowed_fd(fuse, PollFlags::IN)];
            let waits = poll(&mut device, Some(&Timespec::default())).is_ok_and(|n| n > 0);
            if !waits && !self.forgetting.load(Relaxed) {
                return;
            }
        }
    }

    /// Answers requests that wait, until the ring's thread ends. `processor` is the processor of that thread.
    pub(super) fn wait_for_ring(
        &self,
        fuse: impl AsFd,
        rings: &Arc<Rings>,
        processor: usize,
        left: &Receiver<Wait>,
    ) {
        stay_on(processor);
        let replies = ReplySender::new(fuse.as_fd(), Some(rings));
        while let Ok(wait) = left.recv() {
            match wait {
                Wait::Flush => self.flush(&replies),
                Wait::Fsync(header, pending) => {
                    self.fsync_by_checkpoint(&header, pending, &replies)
                }
                Wait::Sync(header, pending) => replies.tell(pending, self.sync(&header)),
            }
        }
    }
}

/// Volume as a service for io_uring.
pub(super) struct VolumeRings<'a> {
    pub(super) server: &'a VolumeServer,
    pub(super) fuse: BorrowedFd<'a>,
    /// Queue of the second thread.
    pub(super) waits: Sender<Wait>,
}

impl RingService for VolumeRings<'_> {
    type Worker = ();

    fn worker(&self, _: usize, _: usize) {}

    fn answer(&self, _: &mut (), call: RingRequest<'_>) -> Option<(OutHeader, usize)> {
        let RingRequest {
            header,
            op: fields,
            payload,
            behind,
            slot,
        } = call;
        let pending = PendingReply {
            unique: header.unique,
            slot: Some(slot),
        };
        let left = if is_fsync(header.opcode) {
            match self.server.begin_fsync(&header) {
                Ok(Fsync::Flush) if self.server.flushes.enter(pending) => Some(Wait::Flush),
                Ok(Fsync::Flush) => return None,
                Ok(Fsync::Checkpoint) => Some(Wait::Fsync(header, pending)),
                done => return Some((header_of(header.unique, done.map(|_| 0)), 0)),
            }
        } else {
            is_sync(header.opcode).then_some(Wait::Sync(header, pending))
        };
        if let Some(wait) = left {
            return match self.waits.send(wait) {
                Ok(()) => None,
                // The second thread panicked.
                Err(_) => Some((header_of(header.unique, Err(Errno::IO)), 0)),
            };
        }
        if header.opcode == op::LSEEK {
            let found = self
                .server
                .begin_seek(&header, Fields(fields, &[]), pending)?;
            let len = found.map(|out| {
                let body = out.as_bytes();
                payload[..body.len()].copy_from_slice(body);
                body.len()
            });
            return Some((header_of(header.unique, len), len.unwrap_or(0)));
        }
        let mut answer = || {
            self.server.guarded(header.opcode, || match header.opcode {
                // READ has no data after its structure.
                op::READ => self.server.answer(&header, Fields(fields, &[]), payload),
                _ => {
                    let fields = Fields(fields, &payload[..behind]);
                    self.server.answer(&header, fields, &mut [])
                }
            })
        };
        let mut reply = answer();
        if let Err(Errno::NOSPC | Errno::DQUOT) = reply {
            self.server.forget_all(self.fuse);
            reply = answer();
        }
        let len = reply.and_then(|reply| match reply {
            Reply::InPlace(len) => Ok(len),
            Reply::Nothing => Ok(0),
            Reply::Body(body) => {
                let room = payload.get_mut(..body.len()).ok_or(Errno::IO)?;
                room.copy_from_slice(&body);
                Ok(body.len())
            }
        });
        Some((header_of(header.unique, len), len.unwrap_or(0)))
    }

    fn uses_busy_poll(&self) -> bool {
        true
    }

    fn shares_long_requests(&self) -> bool {
        true
    }

    fn log(&self) -> &Log {
        &self.server.log
    }
}
