//! io_uring rings that carry requests: safe functions around the code that needs `unsafe`.
//!
//! A request and its reply share the memory of a [`RequestSlot`]. The kernel owns it from its registration, or from
//! the commit of a reply, until the event of the next request. The lock is never held in that time.

#![expect(
    unsafe_code,
    reason = "the kernel reads and writes memory that it was told of"
)]

use crate::protocol::RingHeader;
use crate::schedule::busy_poll::POLL_TIME;
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use rustix::fd::{AsRawFd, BorrowedFd, RawFd};
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// FUSE_IO_URING_CMD_REGISTER: registers a slot for requests.
const REGISTER: u32 = 1;
/// FUSE_IO_URING_CMD_COMMIT_AND_FETCH: sends the reply in a slot and requests the next request.
const COMMIT_AND_FETCH: u32 = 2;

/// Polls of the ring between two reads of the clock.
const GLANCES: usize = 50;

/// Address and length of a buffer: `struct iovec`.
#[repr(C)]
struct Span {
    base: *mut u8,
    len: usize,
}

/// Memory of a request and its reply.
pub(crate) struct Buffers {
    pub(super) header: Box<RingHeader>,
    /// Data after the operation's structure in a request; body of a reply.
    pub(super) payload: Box<[u8]>,
}

/// Slot of a queue, which holds one request at a time.
pub(crate) struct RequestSlot {
    /// Queue: the processor whose requests arrive here.
    pub(super) queue: u16,
    buffers: Mutex<Buffers>,
    spans: [Span; 2],
}

// SAFETY: the pointers refer to `buffers`. Only the kernel uses them, and only while no thread holds the lock: see
// above.
unsafe impl Send for RequestSlot {}
// SAFETY: as for `Send`.
unsafe impl Sync for RequestSlot {}

impl RequestSlot {
    /// Allocates a slot with a payload of `len` bytes. Memory is allocated when it is first touched.
    ///
    /// The slot is never freed, so the kernel may access it at any time during the end of a mount.
    pub(super) fn leak(queue: u16, len: usize) -> &'static Self {
        let mut buffers = Buffers {
            header: Box::default(),
            payload: vec![0; len].into_boxed_slice(),
        };
        let spans = [
            Span {
                base: (&raw mut *buffers.header).cast(),
                len: size_of::<RingHeader>(),
            },
            Span {
                base: buffers.payload.as_mut_ptr(),
                len,
            },
        ];
        Box::leak(Box::new(Self {
            queue,
            buffers: Mutex::new(buffers),
            spans,
        }))
    }

    /// Locks the buffers, for the thread that received the event of a request.
    pub(super) fn lock(&self) -> MutexGuard<'_, Buffers> {
        self.buffers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Completion of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Event {
    /// Tag of the submission.
    pub(super) tag: u64,
    /// Result; a negative one is an error number.
    pub(super) result: i32,
}

/// io_uring instance of one thread.
pub(super) struct Ring(IoUring<squeue::Entry128, cqueue::Entry>);

impl Ring {
    /// Creates a ring for a number of slots. Only the calling thread may use it.
    ///
    /// # Errors
    /// Fails if the kernel is older than Linux 6.1 or forbids io_uring.
    pub(super) fn new(slots: u32) -> io::Result<Self> {
        let mut builder = IoUring::<squeue::Entry128, cqueue::Entry>::builder();
        // Completions run when the thread enters the kernel, and do not interrupt it.
        builder.setup_single_issuer().setup_defer_taskrun();
        builder.setup_taskrun_flag().setup_submit_all();
        builder.setup_cqsize(4 * slots);
        // One message may be under way in addition to each reply.
        builder.build(2 * slots).map(Self)
    }

    pub(super) fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Registers a slot with the kernel. The event tagged `tag` announces a request in it.
    pub(super) fn register(&mut self, fuse: BorrowedFd<'_>, slot: &'static RequestSlot, tag: u64) {
        self.command(fuse, REGISTER, slot, 0, tag);
    }

    /// Sends the reply in a slot and returns the slot to the kernel.
    pub(super) fn commit(
        &mut self,
        fuse: BorrowedFd<'_>,
        slot: &'static RequestSlot,
        unique: u64,
        tag: u64,
    ) {
        self.command(fuse, COMMIT_AND_FETCH, slot, unique, tag);
    }

    fn command(
        &mut self,
        fuse: BorrowedFd<'_>,
        what: u32,
        slot: &'static RequestSlot,
        unique: u64,
        tag: u64,
    ) {
        // struct fuse_uring_cmd_req: flags, commit identifier, queue.
        let mut command = [0; 80];
        command[8..16].copy_from_slice(&unique.to_ne_bytes());
        command[16..18].copy_from_slice(&slot.queue.to_ne_bytes());
        let mut entry = opcode::UringCmd80::new(types::Fd(fuse.as_raw_fd()), what)
            .cmd(command)
            .addr(Some(slot.spans.as_ptr() as u64))
            .build()
            .user_data(tag);
        // The crate has no method that sets `len`, the number of spans.
        // SAFETY: an entry has 128 bytes in the kernel's layout, in which bytes 24 to 28 are `len`.
        unsafe {
            (&raw mut entry)
                .cast::<u8>()
                .add(24)
                .cast::<u32>()
                .write_unaligned(slot.spans.len() as u32);
        }
        self.push(&entry);
    }

    /// Posts an event with this tag to the ring `to`. An event tagged `sent` reports failure or success.
    pub(super) fn message(&mut self, to: RawFd, tag: u64, sent: u64) {
        let entry = opcode::MsgRingData::new(types::Fd(to), 0, tag, None).build();
        self.push(&entry.user_data(sent).into());
    }

    fn push(&mut self, entry: &squeue::Entry128) {
        loop {
            // SAFETY: the entry refers to a leaked slot, which lives forever. No thread holds its lock: a sender
            // releases it before the commit.
            if unsafe { self.0.submission().push(entry) }.is_ok() {
                return;
            }
            // The queue is full: submit it first. A persistent error is reported by the next wait.
            let _ = self.0.submit();
        }
    }

    /// Submits queued entries.
    ///
    /// # Errors
    /// Returns the error of the system call.
    pub(super) fn submit(&self) -> io::Result<()> {
        self.0.submit().map(|_| ())
    }

    /// Submits queued entries and collects available events without blocking.
    ///
    /// # Errors
    /// See [`wait`](Self::wait).
    pub(super) fn submit_and_look(&mut self, events: &mut Vec<Event>) -> io::Result<()> {
        self.enter(0, events)
    }

    /// Submits queued entries, blocks for at least one event and collects all events.
    ///
    /// # Errors
    /// Returns the error of the system call, except for an interruption by a signal.
    pub(super) fn wait(&mut self, events: &mut Vec<Event>) -> io::Result<()> {
        self.enter(1, events)
    }

    /// Submits queued entries and polls for events for at most [`POLL_TIME`].
    ///
    /// # Errors
    /// See [`wait`](Self::wait).
    pub(super) fn poll(&mut self, events: &mut Vec<Event>) -> io::Result<()> {
        self.enter(0, events)?;
        let started = Instant::now();
        while events.is_empty() && started.elapsed() < POLL_TIME {
            for _ in 0..GLANCES {
                // The kernel announces that an event can be fetched with a system call.
                if self.0.submission().taskrun() {
                    self.enter(0, events)?;
                    break;
                }
                std::hint::spin_loop();
            }
        }
        Ok(())
    }

    fn enter(&mut self, want: usize, events: &mut Vec<Event>) -> io::Result<()> {
        match self.0.submit_and_wait(want) {
            Err(e) if e.kind() != io::ErrorKind::Interrupted => return Err(e),
            _ => {}
        }
        events.extend(self.0.completion().map(|e| Event {
            tag: e.user_data(),
            result: e.result(),
        }));
        Ok(())
    }
}
