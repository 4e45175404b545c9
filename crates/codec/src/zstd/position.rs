//! Position counter of an index that persists across inputs, and the state of a search.

/// Count at which the index is emptied, before it outgrows 32 bits.
const COUNT_MAX: usize = 1 << 30;

/// Converts positions to entries of an index. Entries of earlier inputs are smaller than any of the current one, so
/// that nothing is cleared between inputs. Entries are never 0, which is an empty one.
pub(super) struct PositionCounter {
    /// Added to a position to form an entry; may wrap.
    shift: usize,
}

impl PositionCounter {
    pub(super) fn new() -> Self {
        Self { shift: 1 }
    }

    /// Returns the entry for the position `at`.
    #[inline(always)]
    pub(super) fn of(&self, at: usize) -> u32 {
        at.wrapping_add(self.shift) as u32
    }

    /// Starts a new input. Positions of the previous one were indexed up to `high`; new entries are larger by at
    /// least `gap`.
    ///
    /// Returns true if the index has to be emptied; it then counts from 0.
    #[must_use]
    pub(super) fn reset(&mut self, high: usize, gap: usize) -> bool {
        self.shift = high.wrapping_add(self.shift).wrapping_add(gap);
        self.start_over(0, COUNT_MAX)
    }

    /// Starts a frame at `start`. Returns true if the index has to be emptied; it then counts from there.
    #[must_use]
    pub(super) fn begin(&mut self, start: usize) -> bool {
        self.start_over(start, 2 * COUNT_MAX)
    }

    fn start_over(&mut self, at: usize, most: usize) -> bool {
        let full = at.wrapping_add(self.shift) > most;
        if full {
            self.shift = 1usize.wrapping_sub(at);
        }
        full
    }
}

/// State of a search within a frame. Unit: bytes of the input.
pub(super) struct SearchState {
    /// Start of the frame.
    pub(super) start: usize,
    /// Position where the search continues.
    pub(super) at: usize,
    /// End of the last match.
    pub(super) anchor: usize,
    /// Latest distances, most recent first.
    pub(super) distances: [usize; 2],
}

impl SearchState {
    /// Creates the state at the start of a frame.
    pub(super) fn new(start: usize) -> Self {
        Self {
            start,
            at: start,
            anchor: start,
            distances: [1, 4],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_increase_across_inputs() {
        let mut count = PositionCounter::new();
        assert_eq!(count.of(0), 1);
        assert!(!count.reset(700, 5));
        assert_eq!(count.of(0), 706);
        assert!(!count.begin(300));
        assert_eq!(count.of(300), 1006);
    }

    #[test]
    fn position_counter_restarts_before_overflow() {
        let mut count = PositionCounter::new();
        assert!(!count.begin(2 * COUNT_MAX - 1));
        assert!(count.begin(2 * COUNT_MAX));
        assert_eq!(count.of(2 * COUNT_MAX), 1);
        let mut count = PositionCounter::new();
        assert!(!count.reset(COUNT_MAX - 2, 1));
        assert!(count.reset(0, 1));
        assert_eq!(count.of(0), 1);
    }
}
