//! Where requests come from, and where replies go.
//!
//! Through rings of io_uring a request is answered on the processor that asks ([`uring`](tuff_fuse::transport::uring)). A thread with a ring keeps its
//! queue waiting while it is busy, so what waits for the device goes to a thread beside it, on the same processor, where waking costs least:
//!
//! ```text
//!  request ─► ring's thread ─► answered, under the volume's lock
//!                │ fsync, syncfs
//!                └► thread for these ─► flushes; the ring's thread sends the reply
//!  forgotten inodes ─► /dev/fuse, some at a time
//! ```
//!
//! Without rings every thread reads `/dev/fuse` and answers what it read.

use super::VolumeServer;
use super::answer::Said;
use super::request::{Fields, failed, nid, write_op};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;
use std::cell::RefCell;
use std::io::IoSlice;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, Sender};
use std::time::Duration;
use tuff_fuse::filesystem::Result;
use tuff_fuse::handler::Request;
use tuff_fuse::log::Log;
use tuff_fuse::protocol::{InHeader, OutHeader, op};
use tuff_fuse::schedule::affinity::Seat;
use tuff_fuse::schedule::cpu_latency::Awake;
use tuff_fuse::transport::uring::{Call, Later, Rings, Service, stay_on};
use tuff_iplfs::Fsync;
use zerocopy::IntoBytes;

/// Longest write through the device. Unit: bytes.
pub(super) const LONGEST_WRITE: usize = 1 << 20;
/// Room for a request with such a write.
const REQUEST_MAX: usize = LONGEST_WRITE + (16 << 10);
/// How long forgotten inodes wait for others: waking a thread for each would cost more than what it does.
const FORGET_TOGETHER: Duration = Duration::from_millis(1);
/// How often somebody who finds no room looks whether all that is forgotten was given back.
const FORGET_ROUNDS: usize = 200;

/// Room of a thread that reads the device. Untouched memory is not taken from the host.
pub(super) struct Buffers<'a> {
    request: Vec<u8>,
    reply: Vec<u8>,
    awake: Option<&'a Awake>,
}

impl<'a> Buffers<'a> {
    /// `awake` is told of each request.
    pub(super) fn new(awake: Option<&'a Awake>) -> Self {
        Self {
            request: vec![0; REQUEST_MAX],
            reply: vec![0; LONGEST_WRITE],
            awake,
        }
    }
}

/// Who waits for a flush.
#[derive(Clone, Copy)]
pub(super) struct Asker {
    unique: u64,
    /// The place in the rings where the reply goes.
    slot: Option<usize>,
}

/// Tells those who wait.
pub(super) struct Teller<'a> {
    fuse: BorrowedFd<'a>,
    rings: Option<&'a Arc<Rings>>,
    later: RefCell<Option<Later>>,
}

impl<'a> Teller<'a> {
    pub(super) fn new(fuse: BorrowedFd<'a>, rings: Option<&'a Arc<Rings>>) -> Self {
        Self {
            fuse,
            rings,
            later: RefCell::default(),
        }
    }

    fn tell(&self, asker: Asker, result: Result<()>) {
        self.tell_body(asker, result.map(|()| &[][..]));
    }

    pub(super) fn tell_body(&self, asker: Asker, result: Result<&[u8]>) {
        let (Some(slot), Some(rings)) = (asker.slot, self.rings) else {
            // A kernel that does not wait any more is unmounting: the next read says so.
            let _ = send(self.fuse, asker.unique, result);
            return;
        };
        let mut later = self.later.borrow_mut();
        if later.is_none() {
            *later = Later::new(rings.clone()).ok();
        }
        if let Some(later) = &mut *later {
            let header = header_of(asker.unique, result.map(<[u8]>::len));
            later.send(slot, &header, result.unwrap_or_default());
        }
    }
}

/// What a thread with a ring leaves to the one beside it.
pub(super) enum Wait {
    /// Somebody waits for a flush, and nobody flushes.
    Flush,
    /// A file is to be made durable, which takes a checkpoint.
    Fsync(InHeader, Asker),
    /// Everything is to be made durable.
    Sync(InHeader, Asker),
}

/// True for requests that make something durable.
fn is_fsync(opcode: u32) -> bool {
    matches!(opcode, write_op::FSYNC | write_op::FSYNCDIR)
}

/// True for requests that make everything durable. SYNCFS comes from no kernel of today, which sends it to virtiofs and
/// fuseblk alone: behind `sync` there is only the keeper.
fn is_sync(opcode: u32) -> bool {
    matches!(opcode, write_op::SYNCFS | op::DESTROY)
}

fn header_of(unique: u64, body: Result<usize>) -> OutHeader {
    let (error, len) = match body {
        Ok(len) => (0, len),
        Err(e) => (-e.raw_os_error(), 0),
    };
    OutHeader {
        len: (size_of::<OutHeader>() + len) as u32, // fits: at most a megabyte
        error,
        unique,
    }
}

/// Answers a request. An error if there will be no more: it is unmounted.
fn send(fuse: BorrowedFd<'_>, unique: u64, body: Result<&[u8]>) -> Result<()> {
    let header = header_of(unique, body.map(<[u8]>::len));
    let parts = [
        IoSlice::new(header.as_bytes()),
        IoSlice::new(body.unwrap_or_default()),
    ];
    match rustix::io::writev(fuse, &parts) {
        // The asker gave up, or does not understand: that is no reason to end.
        Ok(_) | Err(Errno::INTR | Errno::NOENT | Errno::AGAIN | Errno::INVAL) => Ok(()),
        Err(e) => Err(e),
    }
}

impl VolumeServer {
    /// Runs a part of an answer that may panic.
    pub(super) fn guarded<T>(&self, opcode: u32, answer: impl FnOnce() -> Result<T>) -> Result<T> {
        catch_unwind(AssertUnwindSafe(answer)).unwrap_or_else(|_| {
            let what = op::name(opcode);
            self.log.line(format_args!(
                "bug: {what} panicked; all that follows is EIO"
            ));
            Err(Errno::IO)
        })
    }

    /// Writes what an fsync makes durable, if that takes no waiting.
    fn begin_fsync(&self, header: &InHeader) -> Result<Fsync> {
        self.guarded(header.opcode, || {
            let node = nid(header.node)?;
            let mut core = self.lock()?;
            let volume = core.volume()?;
            if volume.is_read_only() {
                return Ok(Fsync::Durable);
            }
            volume.begin_fsync(node).map_err(failed)
        })
    }

    /// Makes a file durable that needs a checkpoint, and tells who asked.
    fn fsync_by_checkpoint(&self, header: &InHeader, asker: Asker, teller: &Teller<'_>) {
        match self.guarded(header.opcode, || self.fsync_in_turn(nid(header.node)?)) {
            Ok(true) if self.flushes.enter(asker) => self.flush(teller),
            Ok(true) => {}
            done => teller.tell(asker, done.map(|_| ())),
        }
        // What cannot be given back now is given back after the next checkpoint.
        let _ = self.give_back();
    }

    /// Flushes until nobody waits for it.
    fn flush(&self, teller: &Teller<'_>) {
        self.flushes.run(
            || self.device.flush(),
            |group, result| {
                if let Err(e) = result {
                    self.flush_failed(e);
                }
                for asker in group {
                    teller.tell(*asker, result.as_ref().map_or(Err(Errno::IO), |()| Ok(())));
                }
            },
        );
    }

    /// Reads the device and answers on the calling thread until it is unmounted. With `rings`, only what does not come through them is read there.
    pub(super) fn serve(&self, fuse: impl AsFd, rings: Option<&Arc<Rings>>, awake: Option<&Awake>) {
        let mut buffers = Buffers::new(awake);
        let mut seat = Seat::default();
        while let Some((opcode, _)) = self.step(&fuse, &mut buffers, &mut seat, rings) {
            let forgets = matches!(opcode, op::FORGET | op::BATCH_FORGET);
            if forgets && rings.is_some_and(|rings| !rings.failed()) {
                self.forgetting.store(false, Relaxed);
                std::thread::sleep(FORGET_TOGETHER);
            }
        }
    }

    /// One request. `None` if there will be no more; else what it was and whether it was answered well.
    pub(super) fn step(
        &self,
        fuse: &impl AsFd,
        buffers: &mut Buffers<'_>,
        seat: &mut Seat,
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
                seat.choose(&request);
                if let Some(awake) = buffers.awake {
                    awake.asked();
                }
            }
        }
        let teller = Teller::new(fuse.as_fd(), rings);
        let asker = Asker {
            unique: header.unique,
            slot: None,
        };
        if is_fsync(header.opcode) {
            match self.begin_fsync(&header) {
                Ok(Fsync::Flush) if self.flushes.enter(asker) => self.flush(&teller),
                Ok(Fsync::Flush) => {}
                Ok(Fsync::Checkpoint) => self.fsync_by_checkpoint(&header, asker, &teller),
                done => teller.tell(asker, done.map(|_| ())),
            }
            return Some((header.opcode, true));
        }
        if is_sync(header.opcode) {
            teller.tell(asker, self.sync(&header));
            return Some((header.opcode, true));
        }
        if header.opcode == op::LSEEK {
            if let Some(found) = self.begin_seek(&header, Fields(request.body, &[]), asker) {
                teller.tell_body(
                    asker,
                    found.as_ref().map(|out| out.as_bytes()).map_err(|e| *e),
                );
            }
            return Some((header.opcode, true));
        }
        let reply = self.guarded(header.opcode, || {
            self.answer(&header, Fields(request.body, &[]), &mut buffers.reply)
        });
        let body = match &reply {
            Ok(Said::Nothing) => return Some((header.opcode, true)),
            Ok(Said::Body(body)) => Ok(&body[..]),
            Ok(Said::InPlace(len)) => Ok(&buffers.reply[..*len]),
            Err(e) => Err(*e),
        };
        send(fuse.as_fd(), header.unique, body).ok()?;
        Some((header.opcode, body.is_ok()))
    }

    /// Waits until what the kernel has forgotten is given back, which may be the room that somebody looks for.
    fn forget_all(&self, fuse: BorrowedFd<'_>) {
        for _ in 0..FORGET_ROUNDS {
            std::thread::sleep(FORGET_TOGETHER);
            let mut device = [PollFd::from_borrowed_fd(fuse, PollFlags::IN)];
            let waits = poll(&mut device, Some(&Timespec::default())).is_ok_and(|n| n > 0);
            if !waits && !self.forgetting.load(Relaxed) {
                return;
            }
        }
    }

    /// Answers what a thread with a ring leaves, until that ends. `processor` is the one of that thread.
    pub(super) fn wait_for_ring(
        &self,
        fuse: impl AsFd,
        rings: &Arc<Rings>,
        processor: usize,
        left: &Receiver<Wait>,
    ) {
        stay_on(processor);
        let teller = Teller::new(fuse.as_fd(), Some(rings));
        while let Ok(wait) = left.recv() {
            match wait {
                Wait::Flush => self.flush(&teller),
                Wait::Fsync(header, asker) => self.fsync_by_checkpoint(&header, asker, &teller),
                Wait::Sync(header, asker) => teller.tell(asker, self.sync(&header)),
            }
        }
    }
}

/// The server, as rings want it.
pub(super) struct Ringing<'a> {
    pub(super) server: &'a VolumeServer,
    pub(super) fuse: BorrowedFd<'a>,
    /// Where requests go that wait.
    pub(super) waits: Sender<Wait>,
}

impl Service for Ringing<'_> {
    type Seat = ();

    fn seat(&self, _: usize, _: usize) {}

    fn answer(&self, _: &mut (), call: Call<'_>) -> Option<(OutHeader, usize)> {
        let Call {
            header,
            op: fields,
            payload,
            behind,
            slot,
        } = call;
        let asker = Asker {
            unique: header.unique,
            slot: Some(slot),
        };
        let left = if is_fsync(header.opcode) {
            match self.server.begin_fsync(&header) {
                Ok(Fsync::Flush) if self.server.flushes.enter(asker) => Some(Wait::Flush),
                Ok(Fsync::Flush) => return None,
                Ok(Fsync::Checkpoint) => Some(Wait::Fsync(header, asker)),
                done => return Some((header_of(header.unique, done.map(|_| 0)), 0)),
            }
        } else {
            is_sync(header.opcode).then_some(Wait::Sync(header, asker))
        };
        if let Some(wait) = left {
            return match self.waits.send(wait) {
                Ok(()) => None,
                // That thread panicked.
                Err(_) => Some((header_of(header.unique, Err(Errno::IO)), 0)),
            };
        }
        if header.opcode == op::LSEEK {
            let found = self
                .server
                .begin_seek(&header, Fields(fields, &[]), asker)?;
            let len = found.map(|out| {
                let body = out.as_bytes();
                payload[..body.len()].copy_from_slice(body);
                body.len()
            });
            return Some((header_of(header.unique, len), len.unwrap_or(0)));
        }
        let mut answer = || {
            self.server.guarded(header.opcode, || match header.opcode {
                // Nothing follows it.
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
        let len = reply.and_then(|said| match said {
            Said::InPlace(len) => Ok(len),
            Said::Nothing => Ok(0),
            Said::Body(body) => {
                let room = payload.get_mut(..body.len()).ok_or(Errno::IO)?;
                room.copy_from_slice(&body);
                Ok(body.len())
            }
        });
        Some((header_of(header.unique, len), len.unwrap_or(0)))
    }

    fn looks_out(&self) -> bool {
        true
    }

    fn spreads(&self) -> bool {
        true
    }

    fn log(&self) -> &Log {
        &self.server.log
    }
}
