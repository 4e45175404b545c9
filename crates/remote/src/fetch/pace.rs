//! Time after which the answer to a request that a reader waits for is late.

use std::collections::VecDeque;
use std::time::Duration;

/// Number of recent durations.
const DURATIONS: usize = 64;

/// Number of durations from which on their median counts.
const DURATIONS_MIN: usize = 16;

/// Multiple of the median duration after which an answer is late.
const LATE: u32 = 3;

/// Times from recent requests to their first chunks.
#[derive(Default)]
pub(super) struct Durations(VecDeque<Duration>);

impl Durations {
    /// Counts the time to the first chunk of a request that a reader waited for.
    pub(super) fn add(&mut self, duration: Duration) {
        if self.0.len() == DURATIONS {
            self.0.pop_front();
        }
        self.0.push_back(duration);
    }

    /// Time without a chunk after which an answer is late. `None` until there are enough samples.
    pub(super) fn late_after(&self) -> Option<Duration> {
        if self.0.len() < DURATIONS_MIN {
            return None;
        }
        let mut sorted: Vec<Duration> = self.0.iter().copied().collect();
        sorted.sort_unstable();
        Some(sorted[sorted.len() / 2] * LATE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn answers_are_late_after_three_times_the_median() {
        let mut durations = Durations::default();
        for n in 1..DURATIONS_MIN as u32 {
            durations.add(MS * n);
            assert_eq!(durations.late_after(), None);
        }
        durations.add(MS * 1000);
        assert_eq!(durations.late_after(), Some(MS * 27));
    }
}
