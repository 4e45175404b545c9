//! Position counter of an index that persists across inputs, and searches of match finders.

use super::block::Sequence;
use super::sequences::SequenceStore;
use crate::bytes::{byte, load4, match_len};

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
    pub(super) fn entry(&self, at: usize) -> u32 {
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

/// State of a search between two calls. Unit: bytes of the input.
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

/// Search that is under way in a frame. Unit: bytes from the start of the frame.
pub(super) struct Search {
    /// Position of the search.
    pub(super) at: usize,
    /// End of the last match.
    pub(super) anchor: usize,
    /// Latest distance.
    pub(super) near: usize,
    /// The distance before the latest one.
    pub(super) far: usize,
}

impl Search {
    /// Continues the search of `state`.
    #[inline(always)]
    pub(super) fn new(state: &SearchState) -> Self {
        Self {
            at: state.at - state.start,
            anchor: state.anchor - state.start,
            near: state.distances[0],
            far: state.distances[1],
        }
    }

    /// Stores the match of `matched` bytes between the positions `at` and `place`, extended to the left. The search
    /// continues after it.
    #[inline(always)]
    pub(super) fn take(
        &mut self,
        data: &[u8],
        (at, place): (usize, usize),
        matched: usize,
        store: &mut SequenceStore,
    ) {
        let distance = at - place;
        let most = (at - self.anchor).min(place);
        let mut before = 0;
        while before < most && byte(data, at - 1 - before) == byte(data, place - 1 - before) {
            before += 1;
        }
        if distance != self.near {
            (self.near, self.far) = (distance, self.near);
        }
        // fits: a window has at most 12 MiB
        let literals = (at - before - self.anchor) as u32;
        let seq = Sequence::new(literals, (matched + before) as u32, distance as u32);
        store.take(data, self.anchor, seq);
        self.at = at + matched;
        self.anchor = self.at;
    }

    /// Stores matches at the distance before the latest one, directly after a match. `index` adds a position to the
    /// finder's index. A match has ended, so the frame has more than its initial distances here.
    #[inline(always)]
    pub(super) fn take_repeats(
        &mut self,
        data: &[u8],
        end: usize,
        store: &mut SequenceStore,
        mut index: impl FnMut(usize),
    ) {
        while self.at < end && load4(data, self.at) == load4(data, self.at - self.far) {
            let at = self.at;
            let matched = 4 + match_len(data, at + 4, at + 4 - self.far, data.len());
            std::mem::swap(&mut self.near, &mut self.far);
            index(at);
            store.take(
                data,
                self.anchor,
                Sequence::new(0, matched as u32, self.near as u32),
            );
            self.at += matched;
            self.anchor = self.at;
        }
    }

    /// Ends the search in a frame of `len` bytes. A long step may lead past the end.
    #[inline(always)]
    pub(super) fn end(self, state: &mut SearchState, len: usize) {
        state.at = state.start + self.at.min(len);
        state.anchor = state.start + self.anchor;
        state.distances = [self.near, self.far];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_increase_across_inputs() {
        let mut count = PositionCounter::new();
        assert_eq!(count.entry(0), 1);
        assert!(!count.reset(700, 5));
        assert_eq!(count.entry(0), 706);
        assert!(!count.begin(300));
        assert_eq!(count.entry(300), 1006);
    }

    #[test]
    fn position_counter_restarts_before_overflow() {
        let mut count = PositionCounter::new();
        assert!(!count.begin(2 * COUNT_MAX - 1));
        assert!(count.begin(2 * COUNT_MAX));
        assert_eq!(count.entry(2 * COUNT_MAX), 1);
        let mut count = PositionCounter::new();
        assert!(!count.reset(COUNT_MAX - 2, 1));
        assert!(count.reset(0, 1));
        assert_eq!(count.entry(0), 1);
    }
}
