//! What the finders' indices have in common: how one that outlives an input counts its positions, and where a search stands.

/// The count starts over before it outgrows 32 bits.
const COUNT_MAX: usize = 1 << 30;

/// Positions of an input as an index keeps them: those of earlier inputs count less than any of this one, so that nothing has
/// to be cleared between inputs. Never 0, which is an empty entry.
pub(super) struct PositionCounter {
    /// What is added to a position to count it, which may wrap.
    shift: usize,
}

impl PositionCounter {
    pub(super) fn new() -> Self {
        Self { shift: 1 }
    }

    /// An entry for the position `at`.
    #[inline(always)]
    pub(super) fn of(&self, at: usize) -> u32 {
        at.wrapping_add(self.shift) as u32
    }

    /// Starts on new input; positions of the one before were indexed up to `high`, and count `gap` less than any to come.
    /// Returns whether the index has to be emptied, which then counts from 0 on.
    #[must_use]
    pub(super) fn reset(&mut self, high: usize, gap: usize) -> bool {
        self.shift = high.wrapping_add(self.shift).wrapping_add(gap);
        self.start_over(0, COUNT_MAX)
    }

    /// Starts a frame at `start`. Returns whether the index has to be emptied, which then counts from there on.
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

/// Where a search stands within a frame. Unit: bytes of the input.
pub(super) struct SearchState {
    /// Start of the frame.
    pub(super) start: usize,
    /// Where the search goes on.
    pub(super) at: usize,
    /// Where the last match ended.
    pub(super) anchor: usize,
    /// The latest distances, the last one first.
    pub(super) distances: [usize; 2],
}

impl SearchState {
    /// At the start of a frame.
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
    fn positions_of_earlier_inputs_count_less() {
        let mut count = PositionCounter::new();
        assert_eq!(count.of(0), 1);
        assert!(!count.reset(700, 5));
        assert_eq!(count.of(0), 706);
        assert!(!count.begin(300));
        assert_eq!(count.of(300), 1006);
    }

    #[test]
    fn the_count_starts_over_before_it_overflows() {
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
