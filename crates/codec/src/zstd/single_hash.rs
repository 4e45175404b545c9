//! Match finder of level 1: one hash table, and the latest distances.
//!
//! It persists across frames like [`DoubleHash`](super::double_hash::DoubleHash), and is faster
//! but finds less.

use std::hint::{black_box, select_unpredictable};

use super::position::{PositionCounter, Search, SearchState};
use super::sequences::{MatchFinder, SequenceStore};
use crate::bytes::{load4, load8, match_len, prefetch};
use crate::huge_pages::{HugeBox, Zeroable};

/// Largest and smallest size of the table. Unit: log2 of entries.
const LOG: u32 = 15;
const LEAST_LOG: u32 = 10;

/// Number of bytes at the end in which no match starts. Unit: bytes.
const END: usize = 8;

/// Number of literals after which the search step grows by one. Unit: log2 of bytes.
const SKIP_LOG: usize = 7;

/// Latest positions by the hash of six bytes.
struct Table([u32; 1 << LOG]);

// SAFETY: an array of numbers.
unsafe impl Zeroable for Table {}

/// Match finder with one hash table.
pub(super) struct SingleHash {
    table: HugeBox<Table>,
    count: PositionCounter,
    /// Largest position that was indexed.
    high: usize,
    state: SearchState,
    /// Hash mask: small inputs use the front of the table, which stays in the cache. 0 before an input is seen.
    mask: usize,
    reach: usize,
}

impl SingleHash {
    /// Creates a finder of matches up to the distance `reach`. `None` if memory is short.
    pub(super) fn new(reach: usize) -> Option<Self> {
        Some(Self {
            table: HugeBox::new()?,
            count: PositionCounter::new(),
            high: 0,
            state: SearchState::new(0),
            mask: 0,
            reach,
        })
    }
}

impl MatchFinder for SingleHash {
    fn reset(&mut self) {
        let full = self.count.reset(self.high, 1);
        self.high = 0;
        self.mask = 0;
        if full {
            self.table.0.fill(0);
        }
    }

    fn begin(&mut self, start: usize) {
        if self.count.begin(start) {
            self.table.0.fill(0);
            self.high = start;
        }
        self.state = SearchState::new(start);
    }

    fn find(&mut self, data: &[u8], until: usize, store: &mut SequenceStore) {
        let start = self.state.start;
        let data = &data[start..];
        let Some(end) = data.len().checked_sub(END) else {
            return;
        };
        if self.mask == 0 {
            // Constant from one reset to the next.
            let log = data.len().ilog2() - 1;
            self.mask = (1 << log.clamp(LEAST_LOG, LOG)) - 1;
        }
        let index = Index {
            table: &mut self.table.0,
            mask: self.mask,
            zero: self.count.entry(start),
            reach: self.reach,
        };
        let until = until.saturating_sub(start).min(end);
        index.find(&mut self.state, (data, until), store);
        self.high = self.high.max(self.state.at);
    }

    fn position(&self) -> (usize, usize) {
        (self.state.anchor, self.state.at)
    }

    fn give(&mut self, n: usize) {
        self.state.anchor += n;
    }
}

/// Table as one frame sees it. Positions before the frame, or ahead and indexed by an earlier frame, are numbers that
/// are too large.
struct Index<'a> {
    table: &'a mut [u32; 1 << LOG],
    mask: usize,
    /// Count at the start of the frame.
    zero: u32,
    reach: usize,
}

impl Index<'_> {
    #[inline(always)]
    fn hash(&self, bytes: u64) -> usize {
        ((bytes << 16).wrapping_mul(227_718_039_650_203) >> (64 - LOG)) as usize & self.mask
    }

    /// Replaces the position stored for six bytes by `at`, and returns the previous one.
    #[inline(always)]
    fn replace(&mut self, bytes: u64, at: usize) -> usize {
        let slot = self.hash(bytes);
        let before = std::mem::replace(&mut self.table[slot], self.zero.wrapping_add(at as u32));
        before.wrapping_sub(self.zero) as usize
    }

    /// Finds sequences in `data`, which begins with the frame, up to `stop`.
    #[inline(always)]
    fn find(
        mut self,
        state: &mut SearchState,
        (data, stop): (&[u8], usize),
        store: &mut SequenceStore,
    ) {
        let end = data.len() - END;
        let mut search = Search::new(state);
        'matches: while search.at < stop {
            let Search {
                mut at,
                anchor,
                near,
                ..
            } = search;
            let (from, place, matched);
            loop {
                let bytes = load8(data, at);
                let found = self.replace(bytes, at);
                if load4(data, at + 1) == load4(data, at + 1 - near) {
                    from = at;
                    at += 1;
                    place = at - near;
                    matched = 4 + match_len(data, at + 4, place + 4, data.len());
                    break;
                }
                // Selects without a branch, because the outcome is unpredictable. The black box prevents the
                // compiler from testing the position before the bytes are compared.
                let safe = select_unpredictable(found < at, found, 0);
                if load4(data, safe) == bytes as u32
                    && black_box((found < at) & (at.wrapping_sub(found) <= self.reach))
                {
                    from = at;
                    place = found;
                    matched = 4 + match_len(data, at + 4, place + 4, data.len());
                    break;
                }
                at += 1 + ((at - anchor) >> SKIP_LOG);
                if at >= stop {
                    search.at = at;
                    break 'matches;
                }
            }
            // The next lookup has a long latency, which overlaps with the work before it.
            if at + matched < end {
                prefetch(&self.table[self.hash(load8(data, at + matched))]);
            }
            search.take(data, (at, place), matched, store);
            let at = search.at;
            if at < end {
                self.replace(load8(data, from + 2), from + 2);
                self.replace(load8(data, at - 2), at - 2);
                search.take_repeats(data, end, store, |at| {
                    self.replace(load8(data, at), at);
                });
            }
        }
        search.end(state, data.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::zstd::sequences::tests::check_matches;

    #[test]
    fn matches_are_of_equal_bytes_within_the_frame_and_reach() {
        for reach in [1 << 19, 1 << 15] {
            let mut finder = SingleHash::new(reach).unwrap();
            check_matches(&mut finder, reach, &[8, 9, 300, 65_535, 140_000]);
        }
    }
}
