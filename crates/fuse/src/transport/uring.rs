//! Transport through io_uring, with one queue per processor (Linux 6.14 with the module parameter `enable_uring`).
//!
//! A request enters the queue of the client's processor. A thread that stays on this processor answers it, so no
//! other processor has to wake up. Where one reader keeps a queue busy with readahead, idle threads of other queues
//! take some of its requests:
//!
//! ```text
//!  request ─► thread of its queue ─► reply sent through its ring
//!                  │ several long reads
//!                  └─► shared ─► any thread ─► reply sent through that thread's ring, which then owns the slot
//!  short request ─► thread of another queue that owns the slot ─► reply; the slot returns to its own thread
//! ```
//!
//! INIT, FORGET and notifications use `/dev/fuse`: one thread serves it in addition.
//!
//! A [`RingService`] answers the requests. It may defer a reply to [`DeferredReplies`], which sends it from another
//! thread. So a request that waits for a disk does not block its queue.
//!
//! A service may enable busy polling (`crates/fuse/src/schedule/busy_poll.rs`).

use super::ring::{Buffers, Event, RequestSlot, Ring};
use crate::log::Log;
use crate::protocol::{InHeader, OutHeader, ReadIn, RingHeader, op};
use crate::schedule::busy_poll::{BusyPoll, Migration};
use crate::schedule::cpu_latency::CpuLatency;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;
use rustix::thread::CpuSet;
use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;
use zerocopy::{FromBytes, IntoBytes};

/// Longest request. Each slot has memory for one. Shorter requests would split clusters, which are then decoded and
/// copied in parts. Unit: pages of 4 KiB.
pub const MAX_PAGES: u16 = 128;

/// Memory for the payload of a slot. Unit: bytes.
const PAYLOAD: usize = MAX_PAGES as usize * 4096;

/// Slots per queue, for services without [`DeferredReplies`]. More would wait for the same processor.
pub const DEPTH: usize = 4;

/// Maximum number of messages of [`DeferredReplies`] under way.
const LATER: u32 = 8;

/// Maximum number of queues. More slots would take more memory than the mount's caches.
const QUEUES_MAX: usize = 64;

/// Shortest read that justifies another thread. Unit: bytes.
const LONG: u32 = 64 << 10;

/// Tags of events: a slot has a request; a reply has to be sent; a message about a reply was delivered or not;
/// shared reads are available; the end.
const READY: u64 = 0;
const SEND: u64 = 1 << 32;
const RETURNED: u64 = 2 << 32;
const POLL_TIME: u64 = 3 << 32;
const STOP: u64 = 4 << 32;

/// Placeholder for a slot in a tag.
const NO_SLOT: u64 = u32::MAX as u64;

/// Request that arrived through io_uring.
pub struct RingRequest<'a> {
    /// Common header of the request.
    pub header: InHeader,
    /// Structure of the operation, if it has one.
    pub op: &'a [u8],
    /// Data after the structure, and buffer for the body of the reply.
    pub payload: &'a mut [u8],
    /// Length of the data after the structure. Unit: bytes.
    pub behind: usize,
    /// Index of the slot, for [`DeferredReplies::send`].
    pub slot: usize,
}

/// Service that answers requests from io_uring.
pub trait RingService {
    /// State of one serving thread.
    type Worker;

    /// Creates the state of a thread: number `worker` of the session, number `number` of the rings.
    fn worker(&self, worker: usize, number: usize) -> Self::Worker;

    /// Writes the body of the reply to the start of the payload. Returns its header and its length.
    ///
    /// None if [`DeferredReplies`] sends the reply. Every request in a ring expects one.
    fn answer(
        &self,
        worker: &mut Self::Worker,
        call: RingRequest<'_>,
    ) -> Option<(OutHeader, usize)>;

    /// Runs after the reply is queued. `send` submits it at once.
    fn after(&self, worker: &mut Self::Worker, send: &mut dyn FnMut()) {
        let _ = (worker, send);
    }

    /// Returns true if long writes are shared like long reads, and both go to idle threads first. The client
    /// continues meanwhile on this processor.
    fn shares_long_requests(&self) -> bool {
        false
    }

    /// Returns true if threads busy-poll between short requests.
    fn uses_busy_poll(&self) -> bool {
        false
    }

    /// Returns the log of the session.
    fn log(&self) -> &Log;
}

/// Sends replies from a thread without a queue.
pub struct DeferredReplies {
    rings: Arc<Rings>,
    ring: Ring,
    events: Vec<Event>,
}

impl DeferredReplies {
    /// Creates a sender for the calling thread.
    ///
    /// # Errors
    /// Fails if no ring can be created.
    pub fn new(rings: Arc<Rings>) -> io::Result<Self> {
        let ring = Ring::new(LATER)?;
        Ok(Self {
            rings,
            ring,
            events: Vec::new(),
        })
    }

    /// Sends a reply through the thread that owns the slot. `body` is shorter than a page.
    pub fn send(&mut self, slot: usize, out: &OutHeader, body: &[u8]) {
        let place = self.rings.slots[slot];
        {
            let mut buffers = place.lock();
            buffers.payload[..body.len()].copy_from_slice(body);
            put(&mut buffers.header, out, body.len());
        }
        let home = self.rings.home(place);
        let to = self.rings.threads[home].ring.load(Ordering::Acquire);
        if to >= 0 {
            // Fits: few slots.
            self.ring
                .message(to, SEND | slot as u64, RETURNED | NO_SLOT);
            // An unreachable thread has ended, and the mount with it.
            let _ = self.ring.submit_and_look(&mut self.events);
            self.events.clear();
        }
    }
}

/// Queues, slots and threads of a session.
pub struct Rings {
    slots: Vec<&'static RequestSlot>,
    threads: Vec<RingThread>,
    shared: SharedReads,
    failed: AtomicBool,
    begun: StartBarrier,
    /// CPU latency limit, which notes each request.
    cpu_latency: Option<Arc<CpuLatency>>,
}

/// Synchronises the start of all threads.
#[derive(Default)]
struct StartBarrier {
    threads: Mutex<StartState>,
    more: Condvar,
}

#[derive(Default)]
struct StartState {
    /// Number of threads that registered their slots or failed to.
    count: usize,
    /// Error of a thread that has no ring.
    without_ring: Option<io::Error>,
}

impl StartBarrier {
    fn note(&self, without_ring: Option<io::Error>) {
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        threads.count += 1;
        threads.without_ring = threads.without_ring.take().or(without_ring);
        self.more.notify_all();
    }
}

/// Slots with long reads that any thread may answer.
#[derive(Default)]
struct SharedReads {
    slots: Mutex<VecDeque<usize>>,
    len: AtomicUsize,
}

impl SharedReads {
    /// Adds slots and returns their number.
    fn put(&self, more: impl Iterator<Item = usize>) -> usize {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        slots.extend(more);
        self.len.store(slots.len(), Ordering::Release);
        slots.len()
    }

    fn take(&self) -> Option<usize> {
        if !self.waits() {
            return None;
        }
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let first = slots.pop_front();
        self.len.store(slots.len(), Ordering::Release);
        first
    }

    fn waits(&self) -> bool {
        self.len.load(Ordering::Acquire) > 0
    }
}

/// State of a thread that other threads may read.
struct RingThread {
    /// Descriptor of its ring; -1 before its creation and after its end.
    ring: AtomicI32,
    /// The thread waits for an event.
    idle: AtomicBool,
}

impl Rings {
    /// Returns the number of queues that the kernel would use.
    ///
    /// # Errors
    /// Fails if the kernel lacks or forbids io_uring, or if there are too many processors.
    pub fn probe() -> io::Result<usize> {
        let queues = possible_processors()?;
        if queues > QUEUES_MAX {
            let what = format!("{queues} processors; at most {QUEUES_MAX} have queues here");
            return Err(io::Error::other(what));
        }
        Ring::new(1)?;
        Ok(queues)
    }

    /// Creates queues with `depth` slots each, for at most `threads` threads.
    pub fn new(
        queues: usize,
        threads: usize,
        depth: usize,
        cpu_latency: Option<Arc<CpuLatency>>,
    ) -> Self {
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
            shared: SharedReads::default(),
            failed: AtomicBool::new(false),
            begun: StartBarrier::default(),
            cpu_latency,
        }
    }

    /// Returns true if the kernel rejected the rings. It then uses the device.
    pub fn failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// Waits until every thread in [`serve`](Self::serve) has registered its slots. Returns false if they
    /// [`failed`](Self::failed).
    ///
    /// # Errors
    /// Fails if a thread has no ring: the kernel sends no request before all slots are registered.
    pub fn wait_begun(&self) -> io::Result<bool> {
        let threads = self.begun.threads.lock();
        let threads = threads.unwrap_or_else(PoisonError::into_inner);
        let wait = self.begun.more.wait_while(threads, |threads| {
            threads.count < self.threads.len() && threads.without_ring.is_none()
        });
        match wait
            .unwrap_or_else(PoisonError::into_inner)
            .without_ring
            .take()
        {
            Some(e) => Err(e),
            None => Ok(!self.failed()),
        }
    }

    /// Returns the number of serving threads: at most one per processor.
    pub fn threads(&self) -> usize {
        self.threads.len()
    }

    fn home(&self, slot: &RequestSlot) -> usize {
        usize::from(slot.queue) % self.threads.len()
    }

    /// Answers requests on the calling thread until the filesystem is unmounted. `number` is below
    /// [`threads`](Self::threads); `worker` counts all threads of the session.
    ///
    /// # Errors
    /// Fails if there is no ring or the kernel rejects it: another transport has to serve.
    pub fn serve(
        &self,
        fuse: impl AsFd,
        service: &impl RingService,
        (worker, number): (usize, usize),
    ) -> io::Result<()> {
        stay_on(number);
        let ring = Ring::new(self.slots.len() as u32); // fits: few slots
        let ended = match ring {
            Ok(ring) => self.answer_all(ring, fuse, service, (worker, number)),
            Err(e) => {
                let told = io::Error::new(e.kind(), format!("a ring of io_uring: {e}"));
                self.begun.note(Some(told));
                Err(e)
            }
        };
        if ended.is_err() {
            self.failed.store(true, Ordering::Release);
        }
        ended
    }

    fn answer_all(
        &self,
        mut ring: Ring,
        fuse: impl AsFd,
        service: &impl RingService,
        (worker, number): (usize, usize),
    ) -> io::Result<()> {
        self.threads[number]
            .ring
            .store(ring.fd(), Ordering::Release);
        let mut ring_worker = RingWorker {
            rings: self,
            fuse: fuse.as_fd(),
            service,
            number,
            worker: service.worker(worker, number),
            todo: Vec::new(),
            busy_poll: (service.uses_busy_poll() && self.threads.len() > 1)
                .then(BusyPoll::new)
                .flatten(),
        };
        let own = |i: &usize| self.home(self.slots[*i]) == number;
        for i in (0..self.slots.len()).filter(own) {
            ring.register(ring_worker.fuse, self.slots[i], READY | i as u64);
        }
        let mut events = Vec::new();
        let given = ring.submit_and_look(&mut events);
        // The kernel rejects slots at once.
        if given.is_err() || events.iter().any(|event| event.result < 0) {
            self.failed.store(true, Ordering::Release);
        }
        self.begun.note(None);
        let ended = given.and_then(|()| ring_worker.run(&mut ring, events));
        self.threads[number].ring.store(-1, Ordering::Release);
        self.threads[number].idle.store(false, Ordering::Release);
        // A thread without slots would block forever.
        for thread in &self.threads {
            let to = thread.ring.load(Ordering::Acquire);
            if to >= 0 {
                ring.message(to, STOP, RETURNED | NO_SLOT);
            }
        }
        let _ = ring.submit();
        ended
    }
}

/// State of a running io_uring thread.
struct RingWorker<'a, S: RingService> {
    rings: &'a Rings,
    fuse: BorrowedFd<'a>,
    service: &'a S,
    number: usize,
    worker: S::Worker,
    /// Slots with requests that this thread has to answer.
    todo: Vec<usize>,
    /// Polling state. None if busy polling is disabled or there is only one processor.
    busy_poll: Option<BusyPoll>,
}

impl<S: RingService> RingWorker<'_, S> {
    /// Runs until the end of the session. `events` are the first events.
    fn run(&mut self, ring: &mut Ring, mut events: Vec<Event>) -> io::Result<()> {
        let mut begun = false;
        loop {
            let idle = &self.rings.threads[self.number].idle;
            if events.is_empty() {
                idle.store(true, Ordering::Release);
                if self.busy_poll.as_ref().is_some_and(BusyPoll::is_polling) {
                    ring.poll(&mut events)?;
                }
                if events.is_empty() {
                    ring.wait(&mut events)?;
                }
                idle.store(false, Ordering::Release);
            }
            for event in events.drain(..) {
                match self.note(ring, event) {
                    Ok(true) => begun = true,
                    Ok(false) => return Ok(()),
                    // The first event reports that the kernel rejects the slots.
                    Err(e) if !begun => return Err(e.into()),
                    Err(e) => {
                        if !matches!(e, Errno::NOTCONN | Errno::CONNABORTED | Errno::CANCELED) {
                            let log = self.service.log();
                            log.line(format_args!("a ring of the FUSE device: {e}"));
                        }
                        return Ok(());
                    }
                }
            }
            while let Some(i) = self.next(ring) {
                self.answer(ring, i);
                // Send this reply before the next request is answered.
                if !self.todo.is_empty() || self.rings.shared.waits() {
                    ring.submit_and_look(&mut events)?;
                    if !events.is_empty() {
                        break;
                    }
                }
            }
        }
    }

    fn go(&self, to: Option<Migration>) {
        match to {
            Some(Migration::Home) => stay_on(self.number),
            Some(Migration::Away) => stay_on((self.number + 1) % self.rings.threads.len()),
            None => {}
        }
    }

    /// Handles an event. Returns false at the end of the session.
    fn note(&mut self, ring: &mut Ring, event: Event) -> Result<bool, Errno> {
        let kind = event.tag >> 32 << 32;
        // Fits: the low half is an index of a slot.
        let i = (event.tag & NO_SLOT) as usize;
        match kind {
            STOP => return Ok(false),
            POLL_TIME => {}
            RETURNED if event.result >= 0 || i >= self.rings.slots.len() => {}
            // The other thread is unreachable.
            RETURNED => self.send(ring, i),
            _ if event.result < 0 => return Err(Errno::from_raw_os_error(-event.result)),
            SEND => self.send(ring, i),
            _ => self.todo.push(i),
        }
        Ok(true)
    }

    /// Returns the next slot to answer, short requests first. All long reads but one are shared, and idle threads
    /// are notified.
    fn next(&mut self, ring: &mut Ring) -> Option<usize> {
        let rings = self.rings;
        let shares_long_requests = self.service.shares_long_requests();
        let is_long = |i: &usize| is_long(&rings.slots[*i].lock().header, shares_long_requests);
        if let Some(at) = self.todo.iter().position(|i| !is_long(i)) {
            return Some(self.todo.remove(at));
        }
        let somebody_idle = || {
            let mut others = rings.threads.iter().enumerate();
            others.any(|(i, t)| i != self.number && t.idle.load(Ordering::Acquire))
        };
        let keeps = self.todo.is_empty() || !shares_long_requests || !somebody_idle();
        if keeps && self.todo.len() < 2 {
            return self.todo.pop().or_else(|| rings.shared.take());
        }
        let first = keeps.then(|| self.todo.remove(0));
        let mut more = rings.shared.put(self.todo.drain(..));
        for (other, thread) in rings.threads.iter().enumerate() {
            if more == 0 {
                break;
            }
            let to = thread.ring.load(Ordering::Acquire);
            if other != self.number && to >= 0 && thread.idle.swap(false, Ordering::AcqRel) {
                ring.message(to, POLL_TIME, RETURNED | NO_SLOT);
                more -= 1;
            }
        }
        let _ = ring.submit();
        first.or_else(|| if more > 0 { rings.shared.take() } else { None })
    }

    /// Sends the reply in a slot.
    fn send(&self, ring: &mut Ring, i: usize) {
        let slot = self.rings.slots[i];
        let unique = slot.lock().header.commit;
        ring.commit(self.fuse, slot, unique, READY | i as u64);
    }

    fn answer(&mut self, ring: &mut Ring, i: usize) {
        if let Some(cpu_latency) = &self.rings.cpu_latency {
            cpu_latency.note_request();
        }
        let slot = self.rings.slots[i];
        let Some(long) = self.fill(slot, i) else {
            return;
        };
        let home = self.rings.home(slot);
        let there = self.rings.threads[home].ring.load(Ordering::Acquire);
        if home == self.number || long || there < 0 {
            self.send(ring, i);
        } else {
            ring.message(there, SEND | i as u64, RETURNED | i as u64);
        }
        self.service.after(&mut self.worker, &mut || {
            let _ = ring.submit();
        });
        if let (Some(busy_poll), Some(cpu_latency)) = (&mut self.busy_poll, &self.rings.cpu_latency)
        {
            let go = busy_poll.answered(long, cpu_latency.is_held(), Instant::now());
            if go.is_some() {
                // Send this reply before the migration.
                let _ = ring.submit();
            }
            self.go(go);
        }
    }

    /// Writes the reply into a slot. Returns true for a long request, and None if the reply is deferred.
    fn fill(&mut self, slot: &RequestSlot, i: usize) -> Option<bool> {
        let mut buffers = slot.lock();
        let Buffers { header, payload } = &mut *buffers;
        let in_header = in_header(header);
        let long = is_long(header, self.service.shares_long_requests());
        let behind = (header.payload_len as usize).min(payload.len());
        let op = (in_header.len as usize).saturating_sub(size_of::<InHeader>() + behind);
        let ops = header.op.as_bytes();
        let call = RingRequest {
            header: in_header,
            op: &ops[..op.min(ops.len())],
            payload,
            behind,
            slot: i,
        };
        let (out, len) = self.service.answer(&mut self.worker, call)?;
        put(header, &out, len);
        Some(long)
    }
}

/// Writes the header of a reply whose body has `len` bytes.
fn put(header: &mut RingHeader, out: &OutHeader, len: usize) {
    header.payload_len = len as u32; // fits: at most the payload
    header.in_out.as_mut_bytes()[..size_of::<OutHeader>()].copy_from_slice(out.as_bytes());
}

fn in_header(header: &RingHeader) -> InHeader {
    // The buffer is longer than the header.
    InHeader::read_from_prefix(header.in_out.as_bytes()).map_or(InHeader::default(), |(h, _)| h)
}

/// Returns true for long reads and, with `writes`, long writes.
fn is_long(header: &RingHeader, writes: bool) -> bool {
    match in_header(header).opcode {
        op::READ => {
            ReadIn::read_from_prefix(header.op.as_bytes()).is_ok_and(|(read, _)| read.size >= LONG)
        }
        op::WRITE => writes && header.payload_len >= LONG,
        _ => false,
    }
}

/// Binds this thread to one processor. If that is not permitted, it may run on all.
pub fn stay_on(processor: usize) {
    let mut set = CpuSet::new();
    if processor < CpuSet::MAX_CPU {
        set.set(processor);
        let _ = rustix::thread::sched_setaffinity(None, &set);
    }
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
