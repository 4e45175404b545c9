//! Match finder of the low levels: a hash table of eight bytes for long matches, one of four or five bytes for short
//! matches, and the latest distances.
//!
//! It indexes an input once, however many frames are made of it, and continues where it stopped: only bytes past the
//! end of an output are searched twice. Matches start at the frame's start at the earliest, so that nothing is
//! cleared between frames.

use std::hint::{black_box, select_unpredictable};

use super::position::{PositionCounter, Search, SearchState};
use super::sequences::{MatchFinder, SequenceStore};
use crate::bytes::{load4, load8, match_len, prefetch};
use crate::huge_pages::{HugeBox, Zeroable};

/// Largest sizes of the two tables, and the smallest size. Unit: log2 of entries.
const LONG_LOG: u32 = 17;
const SHORT_LOG: u32 = 15;
const LEAST_LOG: u32 = 10;

/// Length of frames with 16-bit positions, and the output size below which the beginning of longer frames has them,
/// too. Unit: bytes.
const NEAR_MAX: usize = 1 << 16;
const SHORT_OUTPUT: usize = 8 << 10;
/// Size of a table of 16-bit positions. Unit: log2 of entries.
const NEAR_LOG: u32 = 15;

/// Number of bytes at the end in which no match starts. Unit: bytes.
const END: usize = 8;

/// Number of literals after which the search step grows by one. Unit: log2 of bytes.
const SKIP_LOG: usize = 8;

/// Latest positions by hash, counted from the start of the frame.
trait HashTables {
    /// Replaces the position stored for eight bytes by `at`, and returns the previous one.
    fn long(&mut self, bytes: u64, at: usize) -> usize;

    /// Replaces the position stored for the first four or five bytes by `at`, and returns the previous one.
    fn short<const FOUR: bool>(&mut self, bytes: u64, at: usize) -> usize;

    /// Prefetches the entries of both tables.
    fn fetch<const FOUR: bool>(&self, bytes: u64);

    /// Returns true if `place`, which came from a table, may be a match.
    fn is_known(&self, place: usize, at: usize) -> bool;

    /// Returns `place` if it can be read, otherwise another position that can.
    fn safe(&self, place: usize, at: usize) -> usize;
}

/// Tables that persist across frames. Positions before the frame, or ahead and indexed by an earlier frame, are
/// numbers that are too large.
struct FullTables<'a> {
    tables: &'a mut FullTableData,
    masks: [usize; 2],
    /// Count of the index at the start of the frame.
    zero: u32,
    reach: usize,
}

struct FullTableData {
    long: [u32; 1 << LONG_LOG],
    short: [u32; 1 << SHORT_LOG],
}

// SAFETY: arrays of numbers.
unsafe impl Zeroable for FullTableData {}

impl HashTables for FullTables<'_> {
    #[inline(always)]
    fn long(&mut self, bytes: u64, at: usize) -> usize {
        let slot = &mut self.tables.long[hash8::<LONG_LOG>(bytes) & self.masks[0]];
        let before = std::mem::replace(slot, self.zero.wrapping_add(at as u32));
        before.wrapping_sub(self.zero) as usize
    }

    #[inline(always)]
    fn short<const FOUR: bool>(&mut self, bytes: u64, at: usize) -> usize {
        let slot = &mut self.tables.short[hash_short::<FOUR, SHORT_LOG>(bytes) & self.masks[1]];
        let before = std::mem::replace(slot, self.zero.wrapping_add(at as u32));
        before.wrapping_sub(self.zero) as usize
    }

    #[inline(always)]
    fn fetch<const FOUR: bool>(&self, bytes: u64) {
        prefetch(&self.tables.long[hash8::<LONG_LOG>(bytes) & self.masks[0]]);
        prefetch(&self.tables.short[hash_short::<FOUR, SHORT_LOG>(bytes) & self.masks[1]]);
    }

    #[inline(always)]
    fn is_known(&self, place: usize, at: usize) -> bool {
        (place < at) & (at.wrapping_sub(place) <= self.reach)
    }

    /// Selects without a branch, because the outcome is unpredictable.
    #[inline(always)]
    fn safe(&self, place: usize, at: usize) -> usize {
        select_unpredictable(place < at, place, 0)
    }
}

/// Tables of one short frame. They take half the memory, which stays in a nearer cache, and every entry is a position
/// in the frame. An empty entry is its start, which is a valid candidate.
struct CompactTables<'a> {
    tables: &'a mut CompactTableData,
    mask: usize,
}

struct CompactTableData {
    long: [u16; 1 << NEAR_LOG],
    short: [u16; 1 << NEAR_LOG],
}

// SAFETY: arrays of numbers.
unsafe impl Zeroable for CompactTableData {}

impl HashTables for CompactTables<'_> {
    #[inline(always)]
    fn long(&mut self, bytes: u64, at: usize) -> usize {
        let slot = &mut self.tables.long[hash8::<NEAR_LOG>(bytes) & self.mask];
        // fits: the frame has at most 2^16 bytes
        usize::from(std::mem::replace(slot, at as u16))
    }

    #[inline(always)]
    fn short<const FOUR: bool>(&mut self, bytes: u64, at: usize) -> usize {
        let slot = &mut self.tables.short[hash_short::<FOUR, NEAR_LOG>(bytes) & self.mask];
        usize::from(std::mem::replace(slot, at as u16))
    }

    #[inline(always)]
    fn fetch<const FOUR: bool>(&self, bytes: u64) {
        prefetch(&self.tables.long[hash8::<NEAR_LOG>(bytes) & self.mask]);
        prefetch(&self.tables.short[hash_short::<FOUR, NEAR_LOG>(bytes) & self.mask]);
    }

    #[inline(always)]
    fn is_known(&self, place: usize, at: usize) -> bool {
        place < at
    }

    #[inline(always)]
    fn safe(&self, place: usize, _: usize) -> usize {
        place
    }
}

#[inline(always)]
fn hash8<const LOG: u32>(bytes: u64) -> usize {
    (bytes.wrapping_mul(0xCF1B_BCDC_B7A5_6463) >> (64 - LOG)) as usize
}

/// Hashes the first four bytes, or five.
#[inline(always)]
fn hash_short<const FOUR: bool, const LOG: u32>(bytes: u64) -> usize {
    let bytes = if FOUR { bytes << 32 } else { bytes << 24 };
    (bytes.wrapping_mul(889_523_592_379) >> (64 - LOG)) as usize
}

/// Match finder with two hash tables.
pub(super) struct DoubleHash {
    tables: HugeBox<FullTableData>,
    near: HugeBox<CompactTableData>,
    count: PositionCounter,
    /// Largest position that was indexed.
    high: usize,
    state: SearchState,
    /// Hash masks of both tables: small inputs use the front of a table, which stays in the cache. 0 before an input
    /// is seen.
    masks: [usize; 2],
    /// Hash mask of the tables of a short frame; `None` until the frame is seen, 0 if it is not short.
    near_mask: Option<usize>,
    /// Largest output. Unit: bytes.
    cluster: usize,
    reach: usize,
    /// True if short matches are found by four bytes.
    four: bool,
}

impl MatchFinder for DoubleHash {
    fn reset(&mut self) {
        let full = self.count.reset(self.high, 1);
        self.high = 0;
        self.masks = [0; 2];
        if full {
            self.clear();
        }
    }

    fn begin(&mut self, start: usize) {
        if self.count.begin(start) {
            self.clear();
            self.high = start;
        }
        self.near_mask = None;
        self.state = SearchState::new(start);
    }

    fn find(&mut self, data: &[u8], until: usize, store: &mut SequenceStore) {
        let start = self.state.start;
        let data = &data[start..];
        let Some(end) = data.len().checked_sub(END) else {
            return;
        };
        let until = until.saturating_sub(start).min(end);
        let near_mask = match self.near_mask {
            Some(mask) => mask,
            None => self.begin_near(data.len()),
        };
        self.near_mask = Some(near_mask);
        let near_max = self.near_max();
        let state = &mut self.state;
        if near_mask > 0 {
            let data = &data[..data.len().min(near_max)];
            let until = until.min(data.len() - END);
            let places = CompactTables {
                tables: &mut self.near,
                mask: near_mask,
            };
            if self.four {
                find::<true>(state, places, (data, until), store);
            } else {
                find::<false>(state, places, (data, until), store);
            }
            if until == end || state.at - start < data.len() - END {
                return;
            }
            // The output holds more than usual. The rest of the frame has no matches before this position.
            self.near_mask = Some(0);
        }
        if self.masks == [0; 2] {
            // Constant from one reset to the next.
            let log = data.len().ilog2() - 1;
            self.masks = [LONG_LOG, SHORT_LOG].map(|most| (1 << log.clamp(LEAST_LOG, most)) - 1);
        }
        let places = FullTables {
            tables: &mut self.tables,
            masks: self.masks,
            zero: self.count.entry(start),
            reach: self.reach,
        };
        if self.four {
            find::<true>(state, places, (data, until), store);
        } else {
            find::<false>(state, places, (data, until), store);
        }
        self.high = self.high.max(self.state.at);
    }

    fn position(&self) -> (usize, usize) {
        (self.state.anchor, self.state.at)
    }

    fn give(&mut self, n: usize) {
        self.state.anchor += n;
    }
}

impl DoubleHash {
    /// Creates a finder of matches up to the distance `reach`, for outputs of up to `cluster` bytes. Short matches
    /// are found by four bytes, or by five. `None` if memory is short.
    pub(super) fn new(cluster: usize, reach: usize, four: bool) -> Option<Self> {
        Some(Self {
            tables: HugeBox::new()?,
            near: HugeBox::new()?,
            count: PositionCounter::new(),
            high: 0,
            state: SearchState::new(0),
            masks: [0; 2],
            near_mask: None,
            cluster,
            reach,
            four,
        })
    }

    /// Returns how much of a frame has 16-bit positions, such that all of it is within reach. Unit: bytes.
    fn near_max(&self) -> usize {
        NEAR_MAX.min(self.reach)
    }

    /// Clears the tables of short frames and returns their hash mask for a frame of `len` bytes; 0 if it neither is
    /// short nor begins as one.
    fn begin_near(&mut self, len: usize) -> usize {
        if len > self.near_max() && self.cluster > SHORT_OUTPUT {
            return 0;
        }
        let most = NEAR_LOG.min(self.cluster.max(1).ilog2() + 2);
        let size = 1 << (len.ilog2() - 1).clamp(LEAST_LOG, most.max(LEAST_LOG));
        self.near.long[..size].fill(0);
        self.near.short[..size].fill(0);
        size - 1
    }

    /// Empties both tables and their count.
    fn clear(&mut self) {
        self.tables.long.fill(0);
        self.tables.short.fill(0);
    }
}

/// Finds sequences in `data`, which begins with the frame, up to `stop`.
#[inline(always)]
fn find<const FOUR: bool>(
    state: &mut SearchState,
    mut places: impl HashTables,
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
        let (from, mut place, mut matched);
        loop {
            let bytes = load8(data, at);
            let by_long = places.long(bytes, at);
            let by_short = places.short::<FOUR>(bytes, at);
            if load4(data, at + 1) == load4(data, at + 1 - near) {
                from = at;
                at += 1;
                place = at - near;
                matched = 4 + match_len(data, at + 4, place + 4, data.len());
                break;
            }
            // The black box prevents the compiler from testing `is_known` before the bytes are compared, which takes
            // 1.5 times as long.
            if load8(data, places.safe(by_long, at)) == bytes
                && black_box(places.is_known(by_long, at))
            {
                from = at;
                place = by_long;
                matched = 8 + match_len(data, at + 8, place + 8, data.len());
                break;
            }
            if load4(data, places.safe(by_short, at)) == bytes as u32
                && black_box(places.is_known(by_short, at))
            {
                from = at;
                place = by_short;
                matched = 4 + match_len(data, at + 4, place + 4, data.len());
                // The next position may have a longer match.
                let next = load8(data, at + 1);
                let by_next = places.long(next, at + 1);
                if places.is_known(by_next, at + 1) && load8(data, by_next) == next {
                    let further = 8 + match_len(data, at + 9, by_next + 8, data.len());
                    if further > matched {
                        at += 1;
                        place = by_next;
                        matched = further;
                    }
                }
                break;
            }
            at += 1 + ((at - anchor) >> SKIP_LOG);
            if at >= stop {
                search.at = at;
                break 'matches;
            }
        }
        // The next lookups have a long latency, which overlaps with the work before them.
        if at + matched < end {
            places.fetch::<FOUR>(load8(data, at + matched));
        }
        search.take(data, (at, place), matched, store);
        let at = search.at;
        if at < end {
            // Indexes one position after the first and two before the next, so that the next match is longer.
            let bytes = load8(data, from + 2);
            places.long(bytes, from + 2);
            places.short::<FOUR>(bytes, from + 2);
            places.long(load8(data, at - 2), at - 2);
            places.short::<FOUR>(load8(data, at - 1), at - 1);
            search.take_repeats(data, end, store, |at| {
                let bytes = load8(data, at);
                places.long(bytes, at);
                places.short::<FOUR>(bytes, at);
            });
        }
    }
    search.end(state, data.len());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::zstd::sequences::tests::check_matches;

    #[test]
    fn matches_are_of_equal_bytes_in_short_frames_and_longer_ones() {
        for (cluster, reach) in [(65536, 1 << 19), (4096, 1 << 15)] {
            let mut pairs = DoubleHash::new(cluster, reach, true).unwrap();
            let most = pairs.near_max();
            let lengths = [8, 9, 300, most - 1, most, most + 1, 2 * most];
            check_matches(&mut pairs, reach, &lengths);
        }
    }
}
