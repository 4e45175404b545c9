//! Parallel comparison of file contents. Results are returned by ticket.
//!
//! Invariant: the result does not depend on the number of threads. Files are split into parts independently of that
//! number, and nothing past the first difference of a file counts.

use super::side::Content;
use crate::threads;
use crate::{Error, Result};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Scope;

/// Length of one comparison step, in bytes.
const STEP: usize = 1 << 20;
/// Length of the part of a file that a thread compares at once, in bytes.
const PART: u64 = 8 << 20;
/// Length of a batch after which it is handed to a thread, in bytes.
const BATCH_LEN: u64 = 1 << 20;
/// Maximum number of parts in a batch.
const BATCH: usize = 64;

/// File that exists on both sides.
struct Pair<'a> {
    sides: [Content<'a>; 2],
    /// Lowest offset of a difference found so far. Parts past it are skipped.
    differs: AtomicU64,
}

/// Iterator state over the parts of a file that are not yet compared.
pub(super) struct Parts<'a> {
    pair: Arc<Pair<'a>>,
    rest: Range<u64>,
    /// Start of the next data on each side, as far as determined.
    data: [u64; 2],
}

impl Parts<'_> {
    /// Skips to the next data on either side. A file may claim holes so large that splitting them into parts would take
    /// forever.
    fn skip_holes(&mut self) -> Result<()> {
        let Range { start, end } = self.rest;
        for (data, content) in self.data.iter_mut().zip(&self.pair.sides) {
            if *data <= start {
                *data = content.data_from(start, end)?;
            }
        }
        self.rest.start = start.max(self.data[0].min(self.data[1]));
        Ok(())
    }
}

/// Comparison of one part of a file.
struct Job<'a> {
    ticket: u64,
    pair: Arc<Pair<'a>>,
    range: Range<u64>,
}

/// Result of the comparison of a part.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Part {
    /// Number of bytes compared.
    pub(super) bytes: u64,
    /// Offset of the first difference, if any.
    pub(super) differs: Option<u64>,
}

/// Results of parts, each with its ticket.
type Answers = Vec<(u64, Result<Part>)>;

/// Pool of threads that compare contents.
pub(super) struct Workers<'a> {
    queue: Option<SyncSender<Vec<Job<'a>>>>,
    batch: Vec<Job<'a>>,
    batch_bytes: u64,
    /// Results from the threads. `None` reports a thread that panicked.
    answers: Receiver<Option<Answers>>,
    /// Comparer of the calling thread, if there are no other threads.
    alone: Option<Comparer>,
    stop: Arc<AtomicBool>,
    /// Number of comparing threads, at least 1.
    pub(super) count: usize,
}

impl<'a> Workers<'a> {
    /// Starts `threads` threads. With a single thread, the calling thread compares by itself.
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

    /// Splits the first `size` bytes of a file into parts.
    pub(super) fn parts(&self, sides: [Content<'a>; 2], size: u64) -> Parts<'a> {
        let differs = AtomicU64::new(u64::MAX);
        let pair = Pair { sides, differs };
        Parts {
            pair: Arc::new(pair),
            rest: 0..size,
            data: [0; 2],
        }
    }

    /// Compares or queues the next part under `ticket`. Returns its result if it is available immediately, or `None`
    /// after the last part.
    pub(super) fn next(
        &mut self,
        parts: &mut Parts<'a>,
        ticket: u64,
    ) -> Option<Option<Result<Part>>> {
        // The comparison of the first part skips holes by itself. Most files have no further part.
        if parts.rest.start > 0
            && !parts.rest.is_empty()
            && let Err(e) = parts.skip_holes()
        {
            parts.rest.start = parts.rest.end;
            return Some(Some(Err(e)));
        }
        let Range { start, end } = parts.rest;
        // Parts past a found difference are not compared.
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

    /// Sends the current batch to the threads.
    fn flush(&mut self) {
        self.batch_bytes = 0;
        let batch = std::mem::take(&mut self.batch);
        if let (false, Some(queue)) = (batch.is_empty(), &self.queue) {
            // If no thread receives the batch, no result arrives, and `answers` fails.
            let _ = queue.send(batch);
        }
    }

    /// Waits for the next results.
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

/// Compares batches until the queue is closed.
fn work(
    jobs: &Mutex<Receiver<Vec<Job<'_>>>>,
    answers: &Sender<Option<Answers>>,
    stop: &AtomicBool,
) {
    let _reporter = PanicReporter(answers);
    let mut comparer = Comparer::default();
    loop {
        let batch = jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(batch) = batch else { break };
        let batch = batch.into_iter().take_while(|_| !stop.load(Relaxed));
        let found = batch.map(|job| (job.ticket, comparer.part(&job)));
        // A send fails only after the receiver was dropped. The queue is then closed as well.
        let _ = answers.send(Some(found.collect()));
    }
}

/// Guard that reports a panic of its thread.
struct PanicReporter<'a>(&'a Sender<Option<Answers>>);

impl Drop for PanicReporter<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = self.0.send(None);
        }
    }
}

/// Comparison buffers of one thread.
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
        let part = self.range(&job.pair.sides, job.range.clone())?;
        if let Some(at) = part.differs {
            job.pair.differs.fetch_min(at, Relaxed);
        }
        Ok(part)
    }

    /// Compares a range that is inside both files.
    fn range(&mut self, sides: &[Content<'_>; 2], range: Range<u64>) -> Result<Part> {
        let [buf_a, buf_b] = &mut self.buffers;
        let mut part = Part::default();
        let mut at = range.start;
        // Start of the next data on either side. A hole common to both sides is equal and costs nothing, whatever its
        // length.
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
                // A file was truncated after its size was read.
                part.differs = Some(at + n as u64);
                return Ok(part);
            }
            at += n as u64;
        }
    }
}
