//! The bytes of files, compared by threads; what they find comes back by ticket.
//!
//! Invariant: what is found does not depend on how many threads there are. Files are compared in parts that do not depend on it
//! either, and of what lies behind the first difference of a file nothing counts.

use super::side::Content;
use crate::threads;
use crate::{Error, Result};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Scope;

/// Content is compared in steps of this. Unit: bytes.
const STEP: usize = 1 << 20;
/// What a thread compares of one file at once. Unit: bytes.
const PART: u64 = 8 << 20;
/// Bytes that are enough for a thread to take at once. Unit: bytes.
const BATCH_LEN: u64 = 1 << 20;
/// Most parts that a thread takes at once.
const BATCH: usize = 64;

/// A file on both sides.
struct Pair<'a> {
    sides: [Content<'a>; 2],
    /// How messages name it.
    place: String,
    /// A position that differs: what lies behind it is of no interest.
    differs: AtomicU64,
}

/// What is still to be compared of a file.
pub(super) struct Parts<'a> {
    pair: Arc<Pair<'a>>,
    rest: Range<u64>,
    /// Where each side has data again, if that is known.
    data: [u64; 2],
}

impl Parts<'_> {
    /// Goes on to where either side has data: a file may claim holes that would take forever in parts.
    fn skip_holes(&mut self) -> Result<()> {
        let Range { start, end } = self.rest;
        for (data, content) in self.data.iter_mut().zip(&self.pair.sides) {
            if *data <= start {
                let found = content.data_from(start, end);
                *data = found.map_err(|e| e.within(&self.pair.place))?;
            }
        }
        self.rest.start = start.max(self.data[0].min(self.data[1]));
        Ok(())
    }
}

/// A part of a file.
struct Job<'a> {
    ticket: u64,
    pair: Arc<Pair<'a>>,
    range: Range<u64>,
}

/// What was found in a part.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Part {
    /// What was compared. Unit: bytes.
    pub(super) bytes: u64,
    /// The first position that differs.
    pub(super) differs: Option<u64>,
}

/// What came of the parts with these tickets.
type Answers = Vec<(u64, Result<Part>)>;

/// Those who compare.
pub(super) struct Workers<'a> {
    queue: Option<SyncSender<Vec<Job<'a>>>>,
    batch: Vec<Job<'a>>,
    batch_bytes: u64,
    /// `None`: a thread ended before its work was done.
    answers: Receiver<Option<Answers>>,
    /// The calling thread, where there is no other.
    alone: Option<Comparer>,
    stop: Arc<AtomicBool>,
    /// How many there are.
    pub(super) count: usize,
}

impl<'a> Workers<'a> {
    /// Starts so many threads; with one, the calling thread does it.
    pub(super) fn start<'scope>(scope: &'scope Scope<'scope, '_>, threads: usize) -> Self
    where
        'a: 'scope,
    {
        let threads = match threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            n => n,
        };
        let (send, jobs) = sync_channel::<Vec<Job<'a>>>(2 * threads);
        let (answer, answers) = channel();
        let stop = Arc::new(AtomicBool::new(false));
        let (jobs, stopped) = (Arc::new(Mutex::new(jobs)), Arc::clone(&stop));
        let work = move || work(&jobs, &answer, &stopped);
        let count = match threads {
            1 => 0,
            n => threads::start(scope, "diff", n, work),
        };
        Self {
            queue: (count > 0).then_some(send),
            batch: Vec::new(),
            batch_bytes: 0,
            answers,
            alone: (count == 0).then(Comparer::default),
            stop,
            count: count.max(1),
        }
    }

    /// The first `size` bytes of a file, in parts.
    pub(super) fn parts(&self, sides: [Content<'a>; 2], size: u64, place: String) -> Parts<'a> {
        let differs = AtomicU64::new(u64::MAX);
        let pair = Pair {
            sides,
            place,
            differs,
        };
        Parts {
            pair: Arc::new(pair),
            rest: 0..size,
            data: [0; 2],
        }
    }

    /// Has the next part compared, which gets this ticket. What was found, if that is known at once; `None` at the end.
    pub(super) fn next(
        &mut self,
        parts: &mut Parts<'a>,
        ticket: u64,
    ) -> Option<Option<Result<Part>>> {
        // Whoever compares the first part sees holes by itself, which is all for most files.
        if parts.rest.start > 0
            && !parts.rest.is_empty()
            && let Err(e) = parts.skip_holes()
        {
            parts.rest.start = parts.rest.end;
            return Some(Some(Err(e)));
        }
        let Range { start, end } = parts.rest;
        // What is known to be behind a difference need not be looked at.
        if start >= end || parts.pair.differs.load(Relaxed) < start {
            return None;
        }
        parts.rest.start = end.min(start.saturating_add(PART));
        let job = Job {
            ticket,
            pair: Arc::clone(&parts.pair),
            range: start..parts.rest.start,
        };
        match &mut self.alone {
            Some(comparer) => Some(Some(comparer.part(&job))),
            None => {
                self.push(job);
                Some(None)
            }
        }
    }

    fn push(&mut self, job: Job<'a>) {
        self.batch_bytes += job.range.end - job.range.start;
        self.batch.push(job);
        if self.batch.len() >= BATCH || self.batch_bytes >= BATCH_LEN {
            self.flush();
        }
    }

    /// Gives away what waits for more.
    fn flush(&mut self) {
        self.batch_bytes = 0;
        let batch = std::mem::take(&mut self.batch);
        if let (false, Some(queue)) = (batch.is_empty(), &self.queue) {
            // If nobody takes it, no answer comes, which is noticed.
            let _ = queue.send(batch);
        }
    }

    /// Waits for answers.
    pub(super) fn answers(&mut self) -> Result<Answers> {
        self.flush();
        let answers = self.answers.recv().ok().flatten();
        answers.ok_or_else(|| Error::usage("a thread ended before its work was done"))
    }
}

impl Drop for Workers<'_> {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
    }
}

/// Compares until there is nothing more to come.
fn work(
    jobs: &Mutex<Receiver<Vec<Job<'_>>>>,
    answers: &Sender<Option<Answers>>,
    stop: &AtomicBool,
) {
    let _here = Here(answers);
    let mut comparer = Comparer::default();
    loop {
        let batch = jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(batch) = batch else { break };
        let batch = batch.into_iter().take_while(|_| !stop.load(Relaxed));
        let found = batch.map(|job| (job.ticket, comparer.part(&job)));
        // If nobody waits, nobody asks for more either.
        let _ = answers.send(Some(found.collect()));
    }
}

/// Says that this thread ended before its work was done, if it does.
struct Here<'a>(&'a Sender<Option<Answers>>);

impl Drop for Here<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = self.0.send(None);
        }
    }
}

/// What one thread needs.
#[derive(Default)]
struct Comparer {
    buffers: [Vec<u8>; 2],
}

impl Comparer {
    fn part(&mut self, job: &Job<'_>) -> Result<Part> {
        let known = job.pair.differs.load(Relaxed);
        if known < job.range.start {
            return Ok(Part::default());
        }
        let part = self.range(&job.pair.sides, job.range.clone());
        let part = part.map_err(|e| e.within(&job.pair.place))?;
        if let Some(at) = part.differs {
            job.pair.differs.fetch_min(at, Relaxed);
        }
        Ok(part)
    }

    /// Compares a range that both sides have.
    fn range(&mut self, sides: &[Content<'_>; 2], range: Range<u64>) -> Result<Part> {
        let [buf_a, buf_b] = &mut self.buffers;
        let mut part = Part::default();
        let mut at = range.start;
        // Where either side has data again: what both leave out is the same, however long they claim it is.
        let mut data = [at; 2];
        loop {
            for (data, content) in data.iter_mut().zip(sides) {
                if *data <= at {
                    *data = content.data_from(at, range.end)?;
                }
            }
            at = at.max(data[0].min(data[1]));
            if at >= range.end {
                return Ok(part);
            }
            // Fits: at most STEP.
            let want = (range.end - at).min(STEP as u64) as usize;
            buf_a.resize(want, 0);
            buf_b.resize(want, 0);
            let n_a = sides[0].read(buf_a, at)?;
            let n_b = sides[1].read(buf_b, at)?;
            let n = n_a.min(n_b);
            part.bytes += n as u64;
            if buf_a[..n] != buf_b[..n] {
                let same = buf_a.iter().zip(buf_b.iter()).take_while(|(x, y)| x == y);
                part.differs = Some(at + same.count() as u64);
                return Ok(part);
            }
            if n < want {
                // One of them became shorter than it was when it was examined.
                part.differs = Some(at + n as u64);
                return Ok(part);
            }
            at += n as u64;
        }
    }
}
