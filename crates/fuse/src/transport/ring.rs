//! Rings of io_uring that carry requests: what needs `unsafe`, behind functions that do not.
//!
//! A [`RequestSlot`] is memory that a request and its reply share. It belongs to the kernel from the moment it is registered or
//! its reply is sent until the kernel says that a request is in it; the lock around it is never held meanwhile.

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

/// FUSE_IO_URING_CMD_REGISTER: here is a slot, put a request into it.
const REGISTER: u32 = 1;
/// FUSE_IO_URING_CMD_COMMIT_AND_FETCH: a reply is in the slot, put the next request into it.
const COMMIT_AND_FETCH: u32 = 2;

/// Looks at the ring between two at the clock.
const GLANCES: usize = 50;

/// Where the kernel finds a slot: `struct iovec`.
#[repr(C)]
struct Span {
    base: *mut u8,
    len: usize,
}

/// Memory of a request and its reply.
pub(super) struct Buffers {
    pub(super) header: Box<RingHeader>,
    /// What follows the operation's structure in the request; the body of the reply.
    pub(super) payload: Box<[u8]>,
}

/// One of the places where requests of a queue arrive.
pub(super) struct RequestSlot {
    /// The queue, which is the processor whose requests it gets.
    pub(super) queue: u16,
    buffers: Mutex<Buffers>,
    spans: [Span; 2],
}

// SAFETY: the pointers are those into `buffers`, used by the kernel only, and only while nobody has the lock: see above.
unsafe impl Send for RequestSlot {}
// SAFETY: as above.
unsafe impl Sync for RequestSlot {}

impl RequestSlot {
    /// A slot with room for `len` bytes of payload, which is not taken from the host before it is used. It is never
    /// freed: so nothing the kernel does at the end of a mount, in whatever order, finds the memory gone.
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

    /// The memory, for the thread that was told that a request is in it.
    pub(super) fn lock(&self) -> MutexGuard<'_, Buffers> {
        self.buffers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What came out of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Event {
    /// As it was given to the ring.
    pub(super) tag: u64,
    /// Negative: an error number.
    pub(super) result: i32,
}

/// A ring of one thread.
pub(super) struct Ring(IoUring<squeue::Entry128, cqueue::Entry>);

impl Ring {
    /// A ring for so many slots; of the thread that calls this and of no other.
    ///
    /// # Errors
    /// If the kernel is older than Linux 6.1, or forbids io_uring.
    pub(super) fn new(slots: u32) -> io::Result<Self> {
        let mut builder = IoUring::<squeue::Entry128, cqueue::Entry>::builder();
        // Requests arrive when the thread asks for them and not as interruptions of what it does.
        builder.setup_single_issuer().setup_defer_taskrun();
        builder.setup_taskrun_flag().setup_submit_all();
        builder.setup_cqsize(4 * slots);
        // A message can be under way beside each reply.
        builder.build(2 * slots).map(Self)
    }

    pub(super) fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Gives a slot to the kernel. Its event, tagged `tag`, says that a request is in it.
    pub(super) fn register(&mut self, fuse: BorrowedFd<'_>, slot: &'static RequestSlot, tag: u64) {
        self.command(fuse, REGISTER, slot, 0, tag);
    }

    /// Sends the reply that is in a slot, and gives the slot to the kernel again.
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
        // struct fuse_uring_cmd_req: flags, id of the request, queue.
        let mut command = [0; 80];
        command[8..16].copy_from_slice(&unique.to_ne_bytes());
        command[16..18].copy_from_slice(&slot.queue.to_ne_bytes());
        let mut entry = opcode::UringCmd80::new(types::Fd(fuse.as_raw_fd()), what)
            .cmd(command)
            .addr(Some(slot.spans.as_ptr() as u64))
            .build()
            .user_data(tag);
        // The crate has no name for `len`, the number of spans.
        // SAFETY: an entry is 128 bytes in the kernel's layout, in which bytes 24 to 28 are `len`.
        unsafe {
            (&raw mut entry)
                .cast::<u8>()
                .add(24)
                .cast::<u32>()
                .write_unaligned(slot.spans.len() as u32);
        }
        self.push(&entry);
    }

    /// Has an event with this tag come out of the ring `to`. An event tagged `sent` says whether that worked.
    pub(super) fn message(&mut self, to: RawFd, tag: u64, sent: u64) {
        let entry = opcode::MsgRingData::new(types::Fd(to), 0, tag, None).build();
        self.push(&entry.user_data(sent).into());
    }

    fn push(&mut self, entry: &squeue::Entry128) {
        loop {
            // SAFETY: what an entry points to is a leaked slot, which lives for ever, and whose lock nobody holds: those
            // who send a reply have let go of it.
            if unsafe { self.0.submission().push(entry) }.is_ok() {
                return;
            }
            // Full: what is in it goes first. An error comes again where the thread waits.
            let _ = self.0.submit();
        }
    }

    /// Sends what was pushed.
    ///
    /// # Errors
    /// Of the system call.
    pub(super) fn submit(&self) -> io::Result<()> {
        self.0.submit().map(|_| ())
    }

    /// Sends what was pushed, and adds what has happened to `events` without waiting for anything.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub(super) fn submit_and_look(&mut self, events: &mut Vec<Event>) -> io::Result<()> {
        self.enter(0, events)
    }

    /// Sends what was pushed, waits for an event at least, and adds all there are to `events`.
    ///
    /// # Errors
    /// Of the system call, but an interruption by a signal: that is no event.
    pub(super) fn wait(&mut self, events: &mut Vec<Event>) -> io::Result<()> {
        self.enter(1, events)
    }

    /// Sends what was pushed, and looks for events for [`POLL_TIME`] at most.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub(super) fn poll(&mut self, events: &mut Vec<Event>) -> io::Result<()> {
        self.enter(0, events)?;
        let begun = Instant::now();
        while events.is_empty() && begun.elapsed() < POLL_TIME {
            for _ in 0..GLANCES {
                // The kernel says that a request can be fetched, which needs a system call.
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
