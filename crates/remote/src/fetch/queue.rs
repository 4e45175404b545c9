//! Chunks to fetch, by their priority.

use super::pace::Pace;
use crate::cache::CHUNK;
use crate::error::{Error, Result};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// Number of chunks in one request: 1 MiB.
pub(super) const PART: u64 = 8;

/// Number of chunks that a sequential reader is at most ahead of its last miss: 8 MiB.
const AHEAD_MAX: u64 = 64;

/// Number of sequential readers that are told apart.
const STREAMS: usize = 16;

/// Chunks that came in one request, which waiting readers share.
pub(crate) struct Part {
    pub(super) first: u64,
    pub(super) bytes: Vec<u8>,
}

impl Part {
    /// Copies from a chunk of the part.
    pub(crate) fn copy(&self, chunk: u64, skip: usize, buf: &mut [u8]) {
        // Fits: the part is in memory.
        let at = ((chunk - self.first) * CHUNK) as usize + skip;
        buf.copy_from_slice(&self.bytes[at..at + buf.len()]);
    }
}

/// Result of a fetch, once there is one.
pub(super) type Slot = Arc<OnceLock<Result<Arc<Part>>>>;

/// Priority of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Priority {
    /// A reader waits for a chunk of it.
    Demand,
    /// Readahead, or chunks of the profile.
    Prefetch,
    /// The rest of the image.
    Fill,
}

/// Numbers of requests in flight.
#[derive(Default)]
pub(super) struct InFlight {
    pub(super) demand: usize,
    pub(super) background: usize,
    /// Length of the requests in `background`. Unit: bytes.
    pub(super) background_bytes: u64,
}

impl InFlight {
    /// Number of all requests in flight.
    pub(super) fn all(&self) -> usize {
        self.demand + self.background
    }
}

#[derive(Default)]
pub(super) struct Queue {
    /// Chunks that a reader waits for.
    pub(super) demand: BTreeSet<u64>,
    /// Chunks that a reader is expected to want.
    pub(super) ahead: BTreeSet<u64>,
    /// Chunks of the profile.
    pub(super) profile: BTreeSet<u64>,
    /// Chunks of the profile in their order, some of which may have left `profile`.
    pub(super) profile_order: VecDeque<u64>,
    /// Results of the chunks in `demand` and of those in flight.
    pub(super) slots: HashMap<u64, Slot>,
    pub(super) in_flight: InFlight,
    /// Number of readers that wait.
    pub(super) waiting: usize,
    /// Time at which a reader last waited.
    pub(super) last_wait: Option<Instant>,
    pub(super) fill: FillState,
    /// True after the last reader has closed the image.
    pub(super) is_closed: bool,
    pub(super) pace: Pace,
    streams: [Stream; STREAMS],
    next_stream: usize,
}

/// State of the background fill.
#[derive(Default)]
pub(super) struct FillState {
    pub(super) is_running: bool,
    /// Number of requests in flight.
    pub(super) in_flight: usize,
    /// Number of failures since the last success.
    pub(super) failures: u32,
    /// Failure of a request, which the fill has not seen yet.
    pub(super) failed: Option<FillFailure>,
    /// Failure that ended the fill.
    pub(super) end: Option<Error>,
}

/// Failure of a request of the fill.
pub(super) struct FillFailure {
    pub(super) error: Error,
    /// True if later requests cannot succeed either.
    pub(super) is_final: bool,
}

/// Sequential reader: the end of what was asked for on its behalf, and how far ahead that was.
#[derive(Clone, Copy, Default)]
struct Stream {
    end: u64,
    ahead: u64,
}

impl Queue {
    /// Chunks to ask for besides `chunk`, which a reader wants: its neighbours, and more of them for a sequential
    /// reader. None but the chunk itself while a profile is fetched, which knows better.
    pub(super) fn around(&mut self, chunk: u64) -> Range<u64> {
        let start = chunk / PART * PART;
        let end = start + PART;
        let known = self
            .streams
            .iter_mut()
            .find(|s| s.end == start && start > 0);
        if let Some(stream) = known {
            stream.ahead = (stream.ahead * 2).clamp(PART, AHEAD_MAX);
            stream.end = end + stream.ahead;
            return start..stream.end;
        }
        let next = self.next_stream % STREAMS;
        self.streams[next] = Stream { end, ahead: 0 };
        self.next_stream += 1;
        match self.profile.is_empty() {
            true => start..end,
            false => chunk..chunk + 1,
        }
    }

    /// Next chunks to ask for in one request, in the order of priorities. `background`: a request that no reader waits
    /// for may start.
    pub(super) fn next_run(&mut self, background: bool) -> Option<(Range<u64>, Priority)> {
        if let Some(chunk) = self.demand.first() {
            return Some((self.run_around(*chunk), Priority::Demand));
        }
        if !background {
            return None;
        }
        if let Some(chunk) = self.ahead.first() {
            return Some((self.run_around(*chunk), Priority::Prefetch));
        }
        while let Some(chunk) = self.profile_order.front() {
            if self.profile.contains(chunk) {
                return Some((self.run_around(*chunk), Priority::Prefetch));
            }
            self.profile_order.pop_front();
        }
        None
    }

    /// Wanted chunks next to one another around `start`.
    fn run_around(&self, start: u64) -> Range<u64> {
        let is_wanted = |chunk: u64| {
            self.demand.contains(&chunk)
                || self.ahead.contains(&chunk)
                || self.profile.contains(&chunk)
        };
        let mut run = start..start + 1;
        let is_full = |run: &Range<u64>| run.end - run.start >= PART;
        while !is_full(&run) && run.start > 0 && is_wanted(run.start - 1) {
            run.start -= 1;
        }
        while !is_full(&run) && is_wanted(run.end) {
            run.end += 1;
        }
        run
    }

    /// Takes the chunks of a run from the queue: they are in flight.
    pub(super) fn take(&mut self, run: Range<u64>) {
        for chunk in run {
            self.demand.remove(&chunk);
            self.ahead.remove(&chunk);
            self.profile.remove(&chunk);
            self.slots.entry(chunk).or_default();
        }
    }

    /// Drops what no reader waits for.
    pub(super) fn clear_background(&mut self) {
        self.ahead.clear();
        self.profile.clear();
        self.profile_order.clear();
    }

    /// True if no reader waits and nothing but the fill has work.
    pub(super) fn is_quiet(&self) -> bool {
        let is_empty = self.demand.is_empty() && self.ahead.is_empty() && self.profile.is_empty();
        self.waiting == 0 && is_empty
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adjacent_chunks_go_into_one_request() {
        let mut queue = Queue::default();
        assert_eq!(queue.next_run(true), None);
        queue.demand.extend([20, 21, 30]);
        queue.ahead.extend([5, 18, 19, 22]);
        assert_eq!(queue.next_run(true), Some((18..23, Priority::Demand)));
        queue.ahead.extend(23..40);
        assert_eq!(queue.next_run(true), Some((18..26, Priority::Demand)));
        queue.demand.clear();
        assert_eq!(queue.next_run(true), Some((5..6, Priority::Prefetch)));
        assert_eq!(queue.next_run(false), None);
    }

    #[test]
    fn a_profile_keeps_its_order_behind_readers() {
        let mut queue = Queue::default();
        for chunk in [40, 7, 41, 3] {
            queue.profile.insert(chunk);
            queue.profile_order.push_back(chunk);
        }
        queue.ahead.insert(90);
        let mut runs = Vec::new();
        while let Some((run, _)) = queue.next_run(true) {
            queue.take(run.clone());
            runs.push(run);
        }
        assert_eq!(runs, [90..91, 40..42, 7..8, 3..4]);
    }

    #[test]
    fn a_pending_profile_replaces_reading_around() {
        let mut queue = Queue::default();
        assert_eq!(queue.around(19), 16..24);
        queue.profile.insert(100);
        assert_eq!(queue.around(35), 35..36);
        // A sequential reader goes on.
        assert_eq!(queue.around(24), 24..40);
    }
}
