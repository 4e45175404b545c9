//! Requests and replies through rings of io_uring, one queue for each processor (Linux 6.14, where the module parameter
//! `enable_uring` is set).
//!
//! A request goes to the queue of the processor that asks, and is answered there, by a thread that stays there: nobody
//! waits for another processor to wake up, which takes longer than most answers. Where one reader keeps a queue busy
//! (the kernel reads ahead with several requests at once), threads of other queues that have nothing to do get some of
//! its requests:
//!
//! ```text
//!  request ─► thread of its queue ─► answered, reply sent through its ring
//!                  │ several long reads
//!                  └─► shared ─► any thread ─► answered, sent through that thread's ring, which gets the slot's next request
//!  short request ─► thread of another queue, which got the slot so ─► answered; the slot goes home with the reply
//! ```
//!
//! INIT, FORGET and notifications do not go through rings: who reads the device serves beside this.
//!
//! Where a [`RingService`] wants it, a thread looks for the next short request before it sleeps (`busy_poll.rs`).
//!
//! What the requests are about is a [`RingService`]'s business. It may leave one for a [`DeferredReplies`], which sends the reply from
//! another thread: so that what waits for a disk keeps no queue waiting.

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

/// Longest request: several of them in a row are what a reader from front to back needs, and each slot has room for
/// one. Shorter ones cut clusters in two that are decoded and copied then. Unit: pages of 4 KiB.
pub const MAX_PAGES: u16 = 128;

/// Unit: bytes.
const PAYLOAD: usize = MAX_PAGES as usize * 4096;

/// Slots of a queue, where nothing is answered [`DeferredReplies`]. More would wait for the same processor.
pub const DEPTH: usize = 4;

/// Messages of a [`DeferredReplies`] that are under way.
const LATER: u32 = 8;

/// Most queues: on a host with more processors, slots would take more memory than the mount's caches.
const QUEUES_MAX: usize = 64;

/// Reads at least this long are worth another thread's time. Unit: bytes.
const LONG: u32 = 64 << 10;

/// Tags: a slot that has a request; one whose reply is to be sent; that a message about a reply was sent, or not; there
/// are shared reads; the end.
const READY: u64 = 0;
const SEND: u64 = 1 << 32;
const RETURNED: u64 = 2 << 32;
const POLL_TIME: u64 = 3 << 32;
const STOP: u64 = 4 << 32;

/// In a tag, in the place of a slot.
const NO_SLOT: u64 = u32::MAX as u64;

/// A request that came through a ring.
pub struct RingRequest<'a> {
    /// Its header.
    pub header: InHeader,
    /// The operation's structure, if it has one.
    pub op: &'a [u8],
    /// What follows that in the request, and room for the body of the reply.
    pub payload: &'a mut [u8],
    /// How much follows. Unit: bytes.
    pub behind: usize,
    /// Names the place for [`DeferredReplies::send`].
    pub slot: usize,
}

/// What answers requests that come through rings.
pub trait RingService {
    /// What one thread has to itself.
    type Worker;

    /// What a thread answers with: the `worker`th of the mount, the `number`th with a ring.
    fn worker(&self, worker: usize, number: usize) -> Self::Worker;

    /// Writes the body of the reply to the start of the payload. Its header, and how long the body is; `None` if the reply is sent
    /// [`DeferredReplies`]. Everything that comes through a ring waits for a reply.
    fn answer(
        &self,
        worker: &mut Self::Worker,
        call: RingRequest<'_>,
    ) -> Option<(OutHeader, usize)>;

    /// What is to be done when the reply is on its way. `send` sends it now.
    fn after(&self, worker: &mut Self::Worker, send: &mut dyn FnMut()) {
        let _ = (worker, send);
    }

    /// True if long writes are shared as long reads are, and both go elsewhere whenever somebody has nothing to do: who asks for them goes on
    /// meanwhile, on this processor.
    fn shares_long_requests(&self) -> bool {
        false
    }

    /// True if a thread that answers one short request after another looks for the next one a while before it sleeps.
    fn uses_busy_poll(&self) -> bool {
        false
    }

    /// Where lines go.
    fn log(&self) -> &Log;
}

/// Sends replies from a thread without a queue.
pub struct DeferredReplies {
    rings: Arc<Rings>,
    ring: Ring,
    events: Vec<Event>,
}

impl DeferredReplies {
    /// For the calling thread and no other.
    ///
    /// # Errors
    /// If there is no ring.
    pub fn new(rings: Arc<Rings>) -> io::Result<Self> {
        let ring = Ring::new(LATER)?;
        Ok(Self {
            rings,
            ring,
            events: Vec::new(),
        })
    }

    /// Sends a reply through the thread that the slot belongs to. `body` is shorter than a page.
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
            // The thread is gone if it cannot be told, and with it the mount.
            let _ = self.ring.submit_and_look(&mut self.events);
            self.events.clear();
        }
    }
}

/// All rings of a mount.
pub struct Rings {
    slots: Vec<&'static RequestSlot>,
    threads: Vec<RingThread>,
    shared: SharedReads,
    failed: AtomicBool,
    begun: StartBarrier,
    /// Is told of each request.
    cpu_latency: Option<Arc<CpuLatency>>,
}

/// How far the threads are.
#[derive(Default)]
struct StartBarrier {
    threads: Mutex<StartState>,
    more: Condvar,
}

#[derive(Default)]
struct StartState {
    /// Threads that gave their slots to the kernel, or failed to.
    count: usize,
    /// Why a thread has no ring.
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
    /// How many there are now.
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

/// What others know of a thread.
struct RingThread {
    /// Its ring; -1 until there is one, and when it has ended.
    ring: AtomicI32,
    /// It waits for something to do.
    idle: AtomicBool,
}

impl Rings {
    /// How many queues there would be.
    ///
    /// # Errors
    /// If the kernel has no io_uring as it is needed here, or forbids it; if there are too many processors.
    pub fn probe() -> io::Result<usize> {
        let queues = possible_processors()?;
        if queues > QUEUES_MAX {
            let what = format!("{queues} processors; at most {QUEUES_MAX} have queues here");
            return Err(io::Error::other(what));
        }
        Ring::new(1)?;
        Ok(queues)
    }

    /// So many queues of `depth` slots each, for so many threads at most.
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

    /// True if the kernel did not take them: then it asks through the device.
    pub fn failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// Waits until every thread that [`serve`](Self::serve)s has given its slots to the kernel. False if they [`failed`](Self::failed).
    ///
    /// # Errors
    /// If a thread has no ring: the kernel waits for its slots before it asks anything.
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

    /// How many threads serve: at most one for each processor.
    pub fn threads(&self) -> usize {
        self.threads.len()
    }

    fn home(&self, slot: &RequestSlot) -> usize {
        usize::from(slot.queue) % self.threads.len()
    }

    /// Answers requests on the calling thread until the filesystem is unmounted. `number` is below
    /// [`threads`](Self::threads), `worker` counts all threads of the mount.
    ///
    /// # Errors
    /// If there is no ring, or the kernel does not take it: another transport has to serve.
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
        // What the kernel does not take it refuses at once.
        if given.is_err() || events.iter().any(|event| event.result < 0) {
            self.failed.store(true, Ordering::Release);
        }
        self.begun.note(None);
        let ended = given.and_then(|()| ring_worker.run(&mut ring, events));
        self.threads[number].ring.store(-1, Ordering::Release);
        self.threads[number].idle.store(false, Ordering::Release);
        // Who has no slot would wait for ever.
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

/// One thread at work.
struct RingWorker<'a, S: RingService> {
    rings: &'a Rings,
    fuse: BorrowedFd<'a>,
    service: &'a S,
    number: usize,
    worker: S::Worker,
    /// Slots with requests.
    todo: Vec<usize>,
    /// `None` if it does not look out, or there is nowhere else to be.
    busy_poll: Option<BusyPoll>,
}

impl<S: RingService> RingWorker<'_, S> {
    /// Until the end; `events` are those that there are.
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
                    // The first answer is that the kernel does not take the slots.
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
                // Whoever waits for this answer does not wait for the next one.
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

    /// What an event says is to be done. False: no more.
    fn note(&mut self, ring: &mut Ring, event: Event) -> Result<bool, Errno> {
        let kind = event.tag >> 32 << 32;
        // Fits: the low half, a place in the list of slots.
        let i = (event.tag & NO_SLOT) as usize;
        match kind {
            STOP => return Ok(false),
            POLL_TIME => {}
            RETURNED if event.result >= 0 || i >= self.rings.slots.len() => {}
            // The other thread cannot be reached.
            RETURNED => self.send(ring, i),
            _ if event.result < 0 => return Err(Errno::from_raw_os_error(-event.result)),
            SEND => self.send(ring, i),
            _ => self.todo.push(i),
        }
        Ok(true)
    }

    /// The next slot to answer: short requests first. Long reads but one go to where all threads find them, and threads
    /// without work are told to look there.
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

    /// Sends the reply that is in a slot.
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
                // Whoever waits for this answer does not wait for the move.
                let _ = ring.submit();
            }
            self.go(go);
        }
    }

    /// Writes the reply into a slot. True if the request was a long one; `None` if somebody else sends the reply.
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

/// The header of a reply whose body is `len` bytes long.
fn put(header: &mut RingHeader, out: &OutHeader, len: usize) {
    header.payload_len = len as u32; // fits: at most the payload
    header.in_out.as_mut_bytes()[..size_of::<OutHeader>()].copy_from_slice(out.as_bytes());
}

fn in_header(header: &RingHeader) -> InHeader {
    // The part is longer.
    InHeader::read_from_prefix(header.in_out.as_bytes()).map_or(InHeader::default(), |(h, _)| h)
}

/// True for long reads and, if they count, long writes.
fn is_long(header: &RingHeader, writes: bool) -> bool {
    match in_header(header).opcode {
        op::READ => {
            ReadIn::read_from_prefix(header.op.as_bytes()).is_ok_and(|(read, _)| read.size >= LONG)
        }
        op::WRITE => writes && header.payload_len >= LONG,
        _ => false,
    }
}

/// Keeps this thread on one processor. If that is not allowed it serves from wherever it is.
pub fn stay_on(processor: usize) {
    let mut set = CpuSet::new();
    if processor < CpuSet::MAX_CPU {
        set.set(processor);
        let _ = rustix::thread::sched_setaffinity(None, &set);
    }
}

/// Processors that the host may ever have: each has a queue. The kernel's list reads "0-3" or "0,2-5".
fn possible_processors() -> io::Result<usize> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/possible")?;
    let last = text.trim().rsplit([',', '-']).next();
    let last: usize = last
        .and_then(|n| n.parse().ok())
        .ok_or_else(|| io::Error::other(format!("processors {:?}", text.trim())))?;
    Ok(last + 1)
}
