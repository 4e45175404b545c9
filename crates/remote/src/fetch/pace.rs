//! Measured pace of a source: how much to have in flight, and when an answer is late.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Number of samples of the bandwidth, of which the largest counts.
const RATES: usize = 16;

/// Number of durations of requests that readers waited for.
const DURATIONS: usize = 64;

/// Number of durations from which on their median counts.
const DURATIONS_MIN: usize = 16;

/// Multiple of the median duration after which an answer is late.
const LATE: u32 = 3;

/// Bytes in flight, as a multiple of bandwidth x round trip.
const WINDOW_FACTOR: f64 = 4.0;

/// Bytes in flight before there are samples. Unit: bytes.
const WINDOW_FIRST: u64 = 8 << 20;

/// Smallest and largest number of bytes in flight. Parts in flight are in memory. Unit: bytes.
const WINDOW_MIN: u64 = 4 << 20;
const WINDOW_MAX: u64 = 8 << 20;

/// Shortest request that tells of the bandwidth. Unit: bytes.
const RATE_LEN_MIN: u64 = 256 << 10;

/// Samples of recent requests.
#[derive(Default)]
pub(super) struct Pace {
    /// Bytes that have arrived.
    delivered: u64,
    /// Recent samples of the bandwidth. Unit: bytes per second.
    rates: [f64; RATES],
    next_rate: usize,
    durations: VecDeque<Duration>,
}

/// Start of a request.
#[derive(Clone, Copy)]
pub(super) struct Started {
    pub(super) at: Instant,
    /// Bytes that had arrived.
    delivered: u64,
}

impl Pace {
    /// Marks the start of a request.
    pub(super) fn start(&self) -> Started {
        Started {
            at: Instant::now(),
            delivered: self.delivered,
        }
    }

    /// Counts an answer of `len` bytes, `duration` after its request started. `is_demand`: a reader waited for it.
    pub(super) fn finish(
        &mut self,
        started: Started,
        len: u64,
        duration: Duration,
        is_demand: bool,
    ) {
        self.delivered += len;
        if len >= RATE_LEN_MIN {
            // All that arrived meanwhile, so that parallel requests add up.
            let bytes = self.delivered - started.delivered;
            let rate = bytes as f64 / duration.as_secs_f64().max(1e-6);
            self.rates[self.next_rate % RATES] = rate;
            self.next_rate += 1;
        }
        if is_demand {
            if self.durations.len() == DURATIONS {
                self.durations.pop_front();
            }
            self.durations.push_back(duration);
        }
    }

    /// Measured bandwidth. Unit: bytes per second.
    pub(super) fn bandwidth(&self) -> Option<f64> {
        let largest = self.rates.iter().copied().fold(0.0, f64::max);
        (largest > 0.0).then_some(largest)
    }

    /// Number of bytes to have in flight: 4 x bandwidth x round trip.
    pub(super) fn window(&self, round_trip: Option<Duration>) -> u64 {
        match (round_trip, self.bandwidth()) {
            (Some(round_trip), Some(bandwidth)) => {
                let window = WINDOW_FACTOR * bandwidth * round_trip.as_secs_f64();
                (window.round() as u64).clamp(WINDOW_MIN, WINDOW_MAX)
            }
            _ => WINDOW_FIRST,
        }
    }

    /// Time after which an answer that a reader waits for is late. `None` until there are enough samples.
    pub(super) fn late_after(&self) -> Option<Duration> {
        if self.durations.len() < DURATIONS_MIN {
            return None;
        }
        let mut sorted: Vec<Duration> = self.durations.iter().copied().collect();
        sorted.sort_unstable();
        Some(sorted[sorted.len() / 2] * LATE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn the_window_is_four_times_bandwidth_and_round_trip() {
        let mut pace = Pace::default();
        assert_eq!(pace.window(Some(MS * 80)), WINDOW_FIRST);
        // 1 MiB in 10 ms, 80 ms away: 32 MiB.
        let started = pace.start();
        pace.finish(started, 1 << 20, MS * 10, false);
        assert_eq!(pace.window(Some(MS * 80)), WINDOW_MAX);
        assert_eq!(pace.window(Some(MS * 20)), 8 << 20);
        assert_eq!(pace.window(Some(MS)), WINDOW_MIN);
        assert_eq!(pace.window(None), WINDOW_FIRST);
    }

    #[test]
    fn parallel_requests_add_up() {
        let mut pace = Pace::default();
        let started = [pace.start(); 4];
        for started in started {
            pace.finish(started, 1 << 20, MS * 40, false);
        }
        // 4 MiB in 40 ms.
        assert_eq!(pace.window(Some(MS * 20)), 8 << 20);
    }

    #[test]
    fn answers_are_late_after_three_times_the_median() {
        let mut pace = Pace::default();
        let started = pace.start();
        for n in 1..DURATIONS_MIN as u32 {
            pace.finish(started, 1, MS * n, true);
            assert_eq!(pace.late_after(), None);
        }
        pace.finish(started, 1, MS * 1000, true);
        assert_eq!(pace.late_after(), Some(MS * 27));
        // Prefetch does not count.
        pace.finish(started, 1, MS, false);
        assert_eq!(pace.late_after(), Some(MS * 27));
    }
}
