//! Queues, slots and threads of the rings.

use super::shared::SharedSlots;
use super::start::StartBarrier;
use crate::protocol::{OutHeader, RING_MAX_PAGES, RingHeader};
use crate::transport::ring::{RequestSlot, Ring};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use zerocopy::IntoBytes;

/// Memory for the payload of a slot. Unit: bytes.
const PAYLOAD: usize = RING_MAX_PAGES as usize * 4096;

/// Slots per queue of a read-only filesystem. More would wait for the same processor.
const DEPTH: usize = 4;

/// Slots of all queues together, for a writable filesystem on few processors. A request that waits for a flush
/// occupies a slot.
const WRITABLE_SLOTS: usize = 48;

/// Maximum number of queues. More slots would take more memory than the mount's caches.
const QUEUES_MAX: usize = 64;

/// Tag of an event: the slot in the low half has a request.
pub(super) const READY: u64 = 0;
/// Tag of an event: the reply in the slot has to be sent.
pub(crate) const SEND: u64 = 1 << 32;
/// Tag of the outcome of a message about a reply, which another thread has to send.
pub(super) const PASSED: u64 = 2 << 32;
/// Tag of the outcome of any other message.
pub(crate) const RETURNED: u64 = 3 << 32;
/// Tag of an event: shared requests are available.
pub(super) const SHARED: u64 = 4 << 32;
/// Tag of an event: the session ends.
pub(super) const STOP: u64 = 5 << 32;

/// Queues, slots and threads of a session.
pub(crate) struct Rings {
    pub(crate) slots: Vec<&'static RequestSlot>,
    pub(crate) threads: Vec<RingThread>,
    pub(super) shared: SharedSlots,
    pub(super) failed: AtomicBool,
    pub(super) start: StartBarrier,
    /// The thread that serves the device processes FORGETs.
    pub(crate) forgetting: AtomicBool,
}

/// State of a thread that other threads may read.
pub(crate) struct RingThread {
    /// Descriptor of its ring; -1 before its creation and after its end.
    pub(crate) ring: AtomicI32,
    /// The thread waits for an event.
    pub(super) idle: AtomicBool,
}

impl Rings {
    /// Returns the number of queues that the kernel would use.
    ///
    /// # Errors
    /// Fails if the kernel lacks or forbids io_uring, or if there are too many processors.
    pub(crate) fn probe() -> io::Result<usize> {
        let queues = possible_processors()?;
        if queues > QUEUES_MAX {
            let what = format!("{queues} processors; at most {QUEUES_MAX} have queues here");
            return Err(io::Error::other(what));
        }
        Ring::new(1)?;
        Ok(queues)
    }

    /// Creates queues for at most `threads` threads.
    pub(crate) fn new(queues: usize, threads: usize, writable: bool) -> Self {
        let depth = match writable {
            true => (WRITABLE_SLOTS / queues).clamp(DEPTH, WRITABLE_SLOTS / 2),
            false => DEPTH,
        };
        let queue = |i: usize| (i / depth) as u16; // fits: few queues
        Self {
            slots: (0..queues * depth)
                .map(|i| RequestSlot::leak(queue(i), PAYLOAD))
                .collect(),
            threads: (0..threads.clamp(1, queues))
                .map(|_| RingThread {
                    ring: AtomicI32::new(-1),
                    idle: AtomicBool::new(false),
                })
                .collect(),
            shared: SharedSlots::default(),
            failed: AtomicBool::new(false),
            start: StartBarrier::default(),
            forgetting: AtomicBool::new(false),
        }
    }

    /// Returns true if the kernel rejected the rings. It then uses the device.
    pub(crate) fn failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// Waits until every thread has registered its slots. Returns false if the kernel [rejected](Self::failed) them.
    ///
    /// # Errors
    /// Fails if a thread cannot serve: the kernel sends no request before all slots are registered.
    pub(crate) fn wait_started(&self) -> io::Result<bool> {
        self.start.wait(self.threads.len())?;
        Ok(!self.failed())
    }

    /// Returns the thread that owns a slot.
    pub(crate) fn home(&self, slot: &RequestSlot) -> usize {
        usize::from(slot.queue) % self.threads.len()
    }
}

/// Writes the header of a reply whose body has `len` bytes.
pub(crate) fn put(header: &mut RingHeader, out: &OutHeader, len: usize) {
    header.payload_len = len as u32; // fits: at most the payload
    header.in_out.as_mut_bytes()[..size_of::<OutHeader>()].copy_from_slice(out.as_bytes());
}

/// Returns the number of possible processors, each of which has a queue. The kernel's list reads "0-3" or "0,2-5".
fn possible_processors() -> io::Result<usize> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/possible")?;
    let last = text.trim().rsplit([',', '-']).next();
    let last: usize = last
        .and_then(|n| n.parse().ok())
        .ok_or_else(|| io::Error::other(format!("processors {:?}", text.trim())))?;
    Ok(last + 1)
}
