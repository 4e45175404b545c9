//! The match finder of the low levels: a table by eight bytes for long matches, one by four or five for short ones, and a
//! look at the latest distances.
//!
//! It indexes an input once, however many frames are made of it, and it can be asked for more where it stopped: no byte
//! is matched twice but for those behind the end of an output. What it finds starts at the frame's start at the
//! earliest, so that nothing has to be cleared between frames.

use std::hint::{black_box, select_unpredictable};

use super::block::Sequence;
use super::position::{PositionCounter, SearchState};
use super::sequences::{MatchFinder, SequenceStore};
use crate::bytes::{byte, load4, load8, match_len, prefetch};
use crate::huge_pages::{HugeBox, Zeroable};

/// The tables have at most so many entries, and at least so many. Unit: bits.
const LONG_LOG: u32 = 17;
const SHORT_LOG: u32 = 15;
const LEAST_LOG: u32 = 10;

/// Frames of so much input have their places in 16 bits, and so has the beginning of those whose output is short. Unit: bytes.
const NEAR_MAX: usize = 1 << 16;
const SHORT_OUTPUT: usize = 8 << 10;
/// Entries of a table for those. Unit: bits.
const NEAR_LOG: u32 = 15;

/// No match starts in the last bytes. Unit: bytes.
const END: usize = 8;

/// Behind so many literals every second position is tried, behind twice as many every third, and so on.
const SKIP_LOG: usize = 8;

/// Latest positions by hash. All positions are counted from the start of the frame.
trait HashTables {
    /// What was at the place of eight bytes; now it is `at`.
    fn long(&mut self, bytes: u64, at: usize) -> usize;

    /// What was at the place of the first four or five bytes; now it is `at`.
    fn short<const FOUR: bool>(&mut self, bytes: u64, at: usize) -> usize;

    /// Has both places fetched into the cache.
    fn fetch<const FOUR: bool>(&self, bytes: u64);

    /// Whether a match may be at `place`, which came from a table.
    fn is_known(&self, place: usize, at: usize) -> bool;

    /// `place`, if it can be looked at, or another that can.
    fn safe(&self, place: usize, at: usize) -> usize;
}

/// Tables that outlive a frame: what lies before it or ahead, which an earlier frame has indexed, is a number that is too
/// large.
struct FullTables<'a> {
    tables: &'a mut FullTableData,
    masks: [usize; 2],
    /// How the index counts the start of the frame.
    zero: u32,
    reach: usize,
}

struct FullTableData {
    long: [u32; 1 << LONG_LOG],
    short: [u32; 1 << SHORT_LOG],
}

// SAFETY: numbers.
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

    /// Whether a place is known nobody can predict. Looking at another one instead needs no branch.
    #[inline(always)]
    fn safe(&self, place: usize, at: usize) -> usize {
        select_unpredictable(place < at, place, 0)
    }
}

/// Tables of one frame that is short: half the memory, which is closer to the processor, and every entry is a place in the
/// frame. An empty one is its start, which is as good as any other.
struct CompactTables<'a> {
    tables: &'a mut CompactTableData,
    mask: usize,
}

struct CompactTableData {
    long: [u16; 1 << NEAR_LOG],
    short: [u16; 1 << NEAR_LOG],
}

// SAFETY: numbers.
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

/// Hashes four bytes, or five.
#[inline(always)]
fn hash_short<const FOUR: bool, const LOG: u32>(bytes: u64) -> usize {
    let bytes = if FOUR { bytes << 32 } else { bytes << 24 };
    (bytes.wrapping_mul(889_523_592_379) >> (64 - LOG)) as usize
}

/// The finder.
pub(super) struct DoubleHash {
    tables: HugeBox<FullTableData>,
    near: HugeBox<CompactTableData>,
    count: PositionCounter,
    /// The furthest position that was indexed.
    high: usize,
    state: SearchState,
    /// What a hash keeps of its bits, for either table: little input uses the front of a table, which stays in the cache. 0
    /// until an input is seen.
    masks: [usize; 2],
    /// The same for the tables of a short frame; `None` until it is seen, 0 if it is not short.
    near_mask: Option<usize>,
    /// The largest output. Unit: bytes.
    cluster: usize,
    reach: usize,
    /// Short matches are found by four bytes.
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
            // The output holds more than it mostly does. What comes has no matches in front of this.
            self.near_mask = Some(0);
        }
        if self.masks == [0; 2] {
            // The same from one reset to the next.
            let log = data.len().ilog2() - 1;
            self.masks = [LONG_LOG, SHORT_LOG].map(|most| (1 << log.clamp(LEAST_LOG, most)) - 1);
        }
        let places = FullTables {
            tables: &mut self.tables,
            masks: self.masks,
            zero: self.count.of(start),
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
    /// A finder of matches over up to `reach` bytes for outputs of up to `cluster`; short ones by four bytes, or by five.
    /// `None` if there is no memory.
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

    /// How much of a frame has places of 16 bits at most: all that is in it is in reach then. Unit: bytes.
    fn near_max(&self) -> usize {
        NEAR_MAX.min(self.reach)
    }

    /// What a hash keeps of its bits in the tables of a frame of `len` bytes that is short or begins so, emptied; else 0.
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

    /// Forgets everything.
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
    let start = state.start;
    let end = data.len() - END;
    let (mut at, mut anchor) = (state.at - start, state.anchor - start);
    let [mut near, mut far] = state.distances;
    'matches: while at < stop {
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
            // The box keeps the compiler from asking what is known before the bytes are equal, which takes half as long again.
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
                // One further there may be a longer one.
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
                break 'matches;
            }
        }
        // What is looked up next takes long to come, and there is enough to do before.
        if at + matched < end {
            places.fetch::<FOUR>(load8(data, at + matched));
        }
        let distance = at - place;
        let most = (at - anchor).min(place);
        let mut before = 0;
        while before < most && byte(data, at - 1 - before) == byte(data, place - 1 - before) {
            before += 1;
        }
        at -= before;
        matched += before;
        if distance != near {
            (near, far) = (distance, near);
        }
        // fits: a window has at most 12 MiB
        let seq = Sequence::new((at - anchor) as u32, matched as u32, distance as u32);
        store.take(data, anchor, seq);
        at += matched;
        anchor = at;
        if at < end {
            // A position behind the first, and two in front of the next one, so that the next time is longer.
            let bytes = load8(data, from + 2);
            places.long(bytes, from + 2);
            places.short::<FOUR>(bytes, from + 2);
            places.long(load8(data, at - 2), at - 2);
            places.short::<FOUR>(load8(data, at - 1), at - 1);
            // The frame has more than the first distances behind it here, for a match has ended.
            while at < end && load4(data, at) == load4(data, at - far) {
                matched = 4 + match_len(data, at + 4, at + 4 - far, data.len());
                std::mem::swap(&mut near, &mut far);
                let bytes = load8(data, at);
                places.long(bytes, at);
                places.short::<FOUR>(bytes, at);
                store.take(data, anchor, Sequence::new(0, matched as u32, near as u32));
                at += matched;
                anchor = at;
            }
        }
    }
    // A long step may lead behind the end.
    *state = SearchState {
        start,
        at: start + at.min(data.len()),
        anchor: start + anchor,
        distances: [near, far],
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches_are_of_equal_bytes_in_short_frames_and_longer_ones() {
        let mut data = Vec::new();
        for n in 0..16_000u32 {
            data.extend_from_slice(format!("{} of {};", n * n % 971, n % 13).as_bytes());
        }
        for (cluster, reach) in [(65536, 1 << 19), (4096, 1 << 15)] {
            let mut pairs = DoubleHash::new(cluster, reach, true).unwrap();
            let near_max = pairs.near_max();
            for start in [0, 777] {
                for len in [
                    8,
                    9,
                    300,
                    near_max - 1,
                    near_max,
                    near_max + 1,
                    2 * near_max,
                ] {
                    let data = &data[..start + len];
                    pairs.reset();
                    pairs.begin(start);
                    let mut store = SequenceStore::default();
                    store.clear(1 << 17);
                    for until in [len / 3, len / 2, len] {
                        pairs.find(data, start + until, &mut store);
                    }
                    let mut at = start;
                    for seq in &store.seqs {
                        at += seq.literals as usize;
                        let (from, matched) = (at - seq.offset as usize, seq.matched as usize);
                        assert!(from >= start && at - from <= reach);
                        assert!(data[from..from + matched] == data[at..at + matched]);
                        at += matched;
                    }
                    assert!(len < 300 || !store.seqs.is_empty());
                    assert!(at <= data.len() && pairs.position().0 == at);
                }
            }
        }
    }
}
