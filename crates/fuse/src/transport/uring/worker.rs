//! Thread of a ring: receives requests, answers them and sends the replies.

use super::rings::{PASSED, READY, RETURNED, Rings, SEND, SHARED, STOP, put};
use crate::fields::Fields;
use crate::protocol::{InHeader, ReadIn, RingHeader, op};
use crate::reply::Reply;
use crate::request::Request;
use crate::schedule::affinity::stay_on;
use crate::schedule::busy_poll::{BusyPoll, Migration};
use crate::schedule::cpu_latency::CpuLatency;
use crate::service::Service;
use crate::transport::connection::Connection;
use crate::transport::device::FORGET_INTERVAL;
use crate::transport::replies::header_of;
use crate::transport::ring::{Buffers, Event, RequestSlot, Ring};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, Sender};
use std::time::Instant;
use zerocopy::{FromBytes, IntoBytes};

/// Shortest request that justifies another thread. Unit: bytes.
const LONG: u32 = 64 << 10;
/// Longest reply to a request with data, such as GETXATTR. Unit: bytes.
const REPLY_TO_DATA_MAX: usize = 64 << 10;
/// Maximum number of checks for FORGETs before a request fails for lack of space.
const FORGET_ROUNDS: usize = 200;

/// Answers requests on the calling thread until the filesystem is unmounted. `number` counts the threads of the
/// rings, `worker` all threads of the session.
///
/// Returns earlier if there is no ring or the kernel rejects it: the device has to serve.
pub(crate) fn serve<S: Service>(
    connection: &Connection,
    rings: &Rings,
    service: &S,
    (worker, number): (usize, usize),
) {
    stay_on(number);
    let ended = std::thread::scope(|scope| {
        let begin = || {
            let ring = Ring::new(rings.slots.len() as u32); // fits: few slots
            let ring =
                ring.map_err(|e| io::Error::new(e.kind(), format!("a ring of io_uring: {e}")))?;
            if !S::WRITABLE {
                return Ok((ring, None));
            }
            let (work, pending) = mpsc::channel();
            let run = move || {
                stay_on(number);
                let replies = connection.replies();
                pending
                    .into_iter()
                    .for_each(|work| service.run(work, &replies));
            };
            let second = std::thread::Builder::new().name(format!("wait-{number}"));
            second.spawn_scoped(scope, run)?;
            Ok((ring, Some(work)))
        };
        let (ring, work) = begin().map_err(|e| rings.start.note(Some(e)))?;
        let worker = RingWorker {
            rings,
            fuse: connection.mountpoint.as_fd(),
            cpu_latency: connection.cpu_latency.as_deref(),
            service,
            number,
            worker: service.worker(worker, false),
            work,
            todo: Vec::new(),
            reply: vec![0; REPLY_TO_DATA_MAX],
            busy_poll: (S::WRITABLE && rings.threads.len() > 1)
                .then(BusyPoll::new)
                .flatten(),
        };
        worker.answer_all(ring).map_err(drop)
    });
    if ended.is_err() {
        rings.failed.store(true, Ordering::Release);
    }
}

/// State of a running io_uring thread.
struct RingWorker<'a, S: Service> {
    rings: &'a Rings,
    fuse: BorrowedFd<'a>,
    cpu_latency: Option<&'a CpuLatency>,
    service: &'a S,
    number: usize,
    worker: S::Worker,
    /// Queue of the second thread.
    work: Option<Sender<S::Work>>,
    /// Slots with requests that this thread has to answer.
    todo: Vec<usize>,
    /// Buffer for a reply while the data of its request is in the slot.
    reply: Vec<u8>,
    /// Polling state. None if busy polling is disabled or there is only one processor.
    busy_poll: Option<BusyPoll>,
}

impl<S: Service> RingWorker<'_, S> {
    /// Registers the slots of this thread and answers requests until the end of the session.
    fn answer_all(mut self, mut ring: Ring) -> io::Result<()> {
        let (rings, number) = (self.rings, self.number);
        let thread = &rings.threads[number];
        thread.ring.store(ring.fd(), Ordering::Release);
        for (i, slot) in rings.slots.iter().enumerate() {
            if rings.home(slot) == number {
                ring.register(self.fuse, slot, READY | i as u64);
            }
        }
        let mut events = Vec::new();
        let given = ring.submit_and_look(&mut events);
        // The kernel rejects slots at once.
        if given.is_err() || events.iter().any(|event| event.result < 0) {
            rings.failed.store(true, Ordering::Release);
        }
        rings.start.note(None);
        let ended = given.and_then(|()| self.run(&mut ring, events));
        thread.ring.store(-1, Ordering::Release);
        thread.idle.store(false, Ordering::Release);
        // A thread without slots would block forever.
        for thread in &rings.threads {
            let to = thread.ring.load(Ordering::Acquire);
            if to >= 0 {
                ring.message(to, STOP, RETURNED);
            }
        }
        let _ = ring.submit();
        ended
    }

    /// Runs until the end of the session. `events` are the first events.
    fn run(&mut self, ring: &mut Ring, mut events: Vec<Event>) -> io::Result<()> {
        let mut started = false;
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
                    Ok(true) => started = true,
                    Ok(false) => return Ok(()),
                    // The first event reports that the kernel rejects the slots.
                    Err(e) if !started => return Err(e.into()),
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
                if !self.todo.is_empty() || !self.rings.shared.is_empty() {
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
        let i = event.tag as u32 as usize; // the low half
        match event.tag >> 32 << 32 {
            STOP => return Ok(false),
            SHARED | RETURNED => {}
            PASSED if event.result >= 0 => {}
            // The other thread is unreachable.
            PASSED => self.send(ring, i),
            _ if event.result < 0 => return Err(Errno::from_raw_os_error(-event.result)),
            SEND => self.send(ring, i),
            _ => self.todo.push(i),
        }
        Ok(true)
    }

    /// Returns the next slot to answer, short requests first. All long requests but one are shared, and idle threads
    /// are notified.
    fn next(&mut self, ring: &mut Ring) -> Option<usize> {
        let rings = self.rings;
        let is_long = |i: &usize| is_long(&rings.slots[*i].lock().header, S::WRITABLE);
        if let Some(at) = self.todo.iter().position(|i| !is_long(i)) {
            return Some(self.todo.remove(at));
        }
        let other_is_idle = || {
            let mut others = rings.threads.iter().enumerate();
            others.any(|(i, t)| i != self.number && t.idle.load(Ordering::Acquire))
        };
        let keeps = self.todo.is_empty() || !S::WRITABLE || !other_is_idle();
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
                ring.message(to, SHARED, RETURNED);
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
        if let Some(cpu_latency) = self.cpu_latency {
            cpu_latency.note_request();
        }
        let slot = self.rings.slots[i];
        let Some(long) = self.fill(slot, i) else {
            return;
        };
        let home = self.rings.home(slot);
        let ring_home = self.rings.threads[home].ring.load(Ordering::Acquire);
        if home == self.number || long || ring_home < 0 {
            self.send(ring, i);
        } else {
            ring.message(ring_home, SEND | i as u64, PASSED | i as u64);
        }
        self.service.replied(&mut self.worker, || {
            let _ = ring.submit();
        });
        if let (Some(busy_poll), Some(cpu_latency)) = (&mut self.busy_poll, self.cpu_latency) {
            let go = busy_poll.note_answer(long, cpu_latency.is_held(), Instant::now());
            if go.is_some() {
                // Send this reply before the migration.
                let _ = ring.submit();
            }
            self.go(go);
        }
    }

    /// Writes the reply into a slot. Returns true for a long request, and None if the reply is sent later.
    fn fill(&mut self, slot: &RequestSlot, i: usize) -> Option<bool> {
        let mut buffers = slot.lock();
        let Buffers { header, payload } = &mut *buffers;
        let in_header = in_header(header);
        let long = is_long(header, S::WRITABLE);
        let data_len = (header.payload_len as usize).min(payload.len());
        let fields = (in_header.len as usize).saturating_sub(size_of::<InHeader>() + data_len);
        let fields_max = header.op.as_bytes();
        let fields = &fields_max[..fields.min(fields_max.len())];
        // The reply must not overwrite data of the request.
        let (data, out) = match data_len {
            0 => (&[][..], &mut payload[..]),
            _ => (&payload[..data_len], &mut self.reply[..]),
        };
        let features = self.service.negotiation().features();
        let request = Request::decode(in_header, Fields(fields, data), features, Some(i));
        let mut reply = self.service.handle(&mut self.worker, &request, &mut *out);
        if let Reply::Error(Errno::NOSPC | Errno::DQUOT) = reply {
            wait_for_forgets(self.rings, self.fuse);
            reply = self.service.handle(&mut self.worker, &request, out);
        }
        let len = match reply {
            Reply::Nothing => Ok(0), // every request in a ring expects a reply
            Reply::Body(parts) => Ok(parts.len()),
            Reply::Error(e) => Err(e),
            Reply::Later(None) => return None,
            Reply::Later(Some(work)) => match self.work.as_ref().map(|queue| queue.send(work)) {
                Some(Ok(())) => return None,
                // The second thread panicked.
                _ => Err(Errno::IO),
            },
        };
        let len = len.and_then(|len| {
            let room = payload.get_mut(..len).ok_or(Errno::IO)?;
            if data_len > 0 {
                room.copy_from_slice(&self.reply[..len]);
            }
            Ok(len)
        });
        let out = header_of(in_header.unique, len);
        put(header, &out, len.unwrap_or(0));
        Some(long)
    }
}

/// Waits until pending FORGETs are processed, which may release space.
fn wait_for_forgets(rings: &Rings, fuse: BorrowedFd<'_>) {
    for _ in 0..FORGET_ROUNDS {
        std::thread::sleep(FORGET_INTERVAL);
        let mut device = [PollFd::from_borrowed_fd(fuse, PollFlags::IN)];
        let waits = poll(&mut device, Some(&Timespec::default())).is_ok_and(|n| n > 0);
        if !waits && !rings.forgetting.load(Ordering::Relaxed) {
            return;
        }
    }
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
