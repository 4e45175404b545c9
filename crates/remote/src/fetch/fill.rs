//! Background fill: fetches what is absent, at a limited rate, in the time in which the link is idle.

use super::fetcher::Fetcher;
use super::queue::{Priority, Queue};
use crate::client::link::{Purpose, Turn};
use crate::error::Error;
use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Number of requests per second at a limited rate, from which their length follows.
const PARTS_PER_SECOND: u64 = 4;

/// Pause after a failure that may pass. It doubles with each one.
const PAUSE_FIRST: Duration = Duration::from_secs(1);
const PAUSE_DOUBLINGS_MAX: u32 = 6;

/// Longest time between two looks at the queue.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Number of chunks that are looked at while readers cannot use the queue.
const SCAN: u64 = 1024;

/// Number of passes over the image. What is evicted faster than that is not worth fetching.
const PASSES_MAX: u32 = 4;

/// Fill of one image.
struct Fill {
    fetcher: Arc<Fetcher>,
    /// Largest number of bytes per second.
    rate: Option<u64>,
    /// Next chunk to look at.
    cursor: u64,
    passes: u32,
    /// True if this pass found a chunk that is absent.
    is_incomplete: bool,
    /// Time before which the rate allows no request.
    next: Instant,
}

/// Next step of the fill.
enum Step {
    /// Look again at once.
    Again,
    /// Wait for a change, but not longer than this.
    Wait(Duration),
    /// All is there, or the fill cannot go on.
    End(Option<Error>),
}

/// Starts the fill of an image, at most `rate` bytes per second, unless it runs already.
pub(crate) fn start(fetcher: &Arc<Fetcher>, rate: Option<u64>) {
    let mut queue = fetcher.queue();
    if queue.fill.is_running || queue.is_closed {
        return;
    }
    queue.fill.is_running = true;
    queue.fill.failed = None;
    queue.fill.end = None;
    drop(queue);
    let fill = Fill {
        fetcher: Arc::clone(fetcher),
        rate,
        cursor: 0,
        passes: 0,
        is_incomplete: false,
        next: Instant::now(),
    };
    fetcher.runtime.spawn(fill.run());
}

impl Fill {
    async fn run(mut self) {
        let end = match self.fetcher.has_room_for_all() {
            true => self.steps().await,
            false => Some(self.fetcher.fill_error(
                "the cache is too small for the whole image; make it larger with --cache-max SIZE",
            )),
        };
        let mut queue = self.fetcher.queue();
        queue.fill.is_running = false;
        queue.fill.end = end;
        drop(queue);
        self.fetcher.notify();
    }

    async fn steps(&mut self) -> Option<Error> {
        let fetcher = Arc::clone(&self.fetcher);
        loop {
            let mut changed = pin!(fetcher.link().changed.notified());
            // A change from here on counts.
            changed.as_mut().enable();
            match self.step() {
                Step::Again => {}
                Step::Wait(time) => _ = tokio::time::timeout(time, changed).await,
                Step::End(end) => return end,
            }
        }
    }

    fn step(&mut self) -> Step {
        let fetcher = Arc::clone(&self.fetcher);
        let mut queue = fetcher.queue();
        if queue.is_closed {
            return Step::End(None);
        }
        if let Some(failure) = queue.fill.failed.take() {
            if failure.is_final {
                return Step::End(Some(failure.error));
            }
            // The next pass looks for the chunks that failed. Their absence is no sign of eviction.
            self.is_incomplete = true;
            self.passes = 0;
            let doublings = queue.fill.failures.clamp(1, PAUSE_DOUBLINGS_MAX) - 1;
            self.next = Instant::now() + PAUSE_FIRST * (1 << doublings);
        }
        let now = Instant::now();
        if self.next > now {
            return Step::Wait(self.next - now);
        }
        if !queue.is_quiet() {
            return Step::Wait(POLL_INTERVAL);
        }
        // One request at a time until the first one has succeeded after a failure.
        let is_recovering = queue.fill.failures > 0 && queue.fill.in_flight > 0;
        if !fetcher.has_connection(&queue) || is_recovering {
            return Step::Wait(POLL_INTERVAL);
        }
        self.advance(&mut queue, now)
    }

    /// Starts the next request, or the next pass.
    fn advance(&mut self, queue: &mut Queue, now: Instant) -> Step {
        let cache = &self.fetcher.cache;
        let by_rate = |rate: u64| rate / PARTS_PER_SECOND / cache.chunk_size();
        let by_rate = self.rate.map_or(u64::MAX, by_rate);
        let part = self.fetcher.part(self.fetcher.link().pace());
        let part = by_rate.min(part).clamp(1, queue.part_max());
        let chunks = cache.len();
        let is_absent = |chunk: u64| !queue.slots.contains_key(&chunk) && !cache.is_present(chunk);
        let scanned = self.cursor..(self.cursor + SCAN).min(chunks);
        let Some(first) = scanned.clone().find(|chunk| is_absent(*chunk)) else {
            self.cursor = scanned.end;
            return match self.cursor < chunks {
                true => Step::Again,
                false => self.next_pass(queue),
            };
        };
        let limit = (first + part).min(chunks);
        let end = (first + 1..limit).find(|chunk| !is_absent(*chunk));
        let run = first..end.unwrap_or(limit);
        let step = self.fetcher.link().pace().step();
        let len = self.fetcher.run_len(&run).min(step);
        match self.fetcher.link().turn(Purpose::Fill, len) {
            Turn::Go => {
                self.request(queue, run, now);
                Step::Again
            }
            Turn::Wait(pause) => Step::Wait(pause.unwrap_or(POLL_INTERVAL).min(POLL_INTERVAL)),
        }
    }

    fn request(&mut self, queue: &mut Queue, run: Range<u64>, now: Instant) {
        self.cursor = run.end;
        self.is_incomplete = true;
        if let Some(rate) = self.rate {
            let seconds = self.fetcher.run_len(&run) as f64 / rate.max(1) as f64;
            self.next = now + Duration::from_secs_f64(seconds);
        }
        queue.fill.in_flight += 1;
        self.fetcher.start(queue, run, Priority::Fill);
    }

    /// Ends the fill after a pass that found nothing absent. Requests of others count as absent until they end.
    fn next_pass(&mut self, queue: &Queue) -> Step {
        if queue.in_flight.all() > 0 {
            self.is_incomplete = true;
            return Step::Wait(POLL_INTERVAL);
        }
        if !self.is_incomplete {
            return Step::End(None);
        }
        self.is_incomplete = false;
        self.cursor = 0;
        self.passes += 1;
        match self.passes < PASSES_MAX {
            true => Step::Again,
            false => Step::End(Some(self.fetcher.fill_error(
                "chunks are evicted as fast as they are fetched; make the cache larger with --cache-max SIZE",
            ))),
        }
    }
}
