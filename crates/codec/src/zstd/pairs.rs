//! The match finder of the low levels: a table by eight bytes for long matches, one by four or five for short ones, and a
//! look at the latest distances.
//!
//! It indexes an input once, however many frames are made of it, and it can be asked for more where it stopped: no byte
//! is matched twice but for those behind the end of an output. What it finds starts at the frame's start at the
//! earliest, so that nothing has to be cleared between frames.

use std::hint::{black_box, select_unpredictable};

use super::block::Seq;
use super::index::{Count, Stand};
use super::parse::{Finder, Parse};
use crate::bytes::{byte, fetch, forward, load4, load8};
use crate::huge::{Zero, Zeros};

/// The tables have at most so many entries, and at least so many. Unit: bits.
const LONG_LOG: u32 = 17;
const SHORT_LOG: u32 = 15;
const LEAST_LOG: u32 = 10;

/// No match starts in the last bytes. Unit: bytes.
const END: usize = 8;

/// Behind so many literals every second position is tried, behind twice as many every third, and so on.
const SKIP_LOG: usize = 8;

/// Latest positions by hash, as the index counts.
struct Tables {
    long: [u32; 1 << LONG_LOG],
    short: [u32; 1 << SHORT_LOG],
}

// SAFETY: numbers.
unsafe impl Zero for Tables {}

/// The finder.
pub(super) struct Pairs {
    tables: Zeros<Tables>,
    count: Count,
    /// The furthest position that was indexed.
    high: usize,
    stand: Stand,
    /// What a hash keeps of its bits, for either table: little input uses the front of a table, which stays in the cache. 0
    /// until an input is seen.
    masks: [usize; 2],
    reach: usize,
    /// Short matches are found by four bytes.
    four: bool,
}

#[inline(always)]
fn hash8(bytes: u64) -> usize {
    (bytes.wrapping_mul(0xCF1B_BCDC_B7A5_6463) >> (64 - LONG_LOG)) as usize
}

/// Hashes four bytes, or five.
#[inline(always)]
fn hash_short<const FOUR: bool>(bytes: u64) -> usize {
    let bytes = if FOUR { bytes << 32 } else { bytes << 24 };
    (bytes.wrapping_mul(889_523_592_379) >> (64 - SHORT_LOG)) as usize
}

impl Finder for Pairs {
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
        self.stand = Stand::new(start);
    }

    fn find(&mut self, data: &[u8], until: usize, parse: &mut Parse) {
        if self.four {
            self.find_by::<true>(data, until, parse);
        } else {
            self.find_by::<false>(data, until, parse);
        }
    }

    fn position(&self) -> (usize, usize) {
        (self.stand.anchor, self.stand.at)
    }

    fn give(&mut self, n: usize) {
        self.stand.anchor += n;
    }
}

impl Pairs {
    /// A finder of matches over up to `reach` bytes; short ones by four bytes, or by five. `None` if there is no memory.
    pub(super) fn new(reach: usize, four: bool) -> Option<Self> {
        Some(Self {
            tables: Zeros::new()?,
            count: Count::new(),
            high: 0,
            stand: Stand::new(0),
            masks: [0; 2],
            reach,
            four,
        })
    }

    /// Forgets everything.
    fn clear(&mut self) {
        self.tables.long.fill(0);
        self.tables.short.fill(0);
    }

    #[inline(always)]
    fn find_by<const FOUR: bool>(&mut self, data: &[u8], until: usize, parse: &mut Parse) {
        // All places are counted from the start of the frame: what lies before it or ahead, which an earlier frame has
        // indexed, is then a number that is too large.
        let start = self.stand.start;
        let data = &data[start..];
        let Some(end) = data.len().checked_sub(END) else {
            return;
        };
        let stop = until.saturating_sub(start).min(end);
        let zero = self.count.of(start);
        let reach = self.reach;
        if self.masks == [0; 2] {
            // The same from one reset to the next.
            let log = data.len().ilog2() - 1;
            self.masks = [LONG_LOG, SHORT_LOG].map(|most| (1 << log.clamp(LEAST_LOG, most)) - 1);
        }
        let [long_mask, short_mask] = self.masks;
        let Tables { long, short } = &mut *self.tables;
        let (mut at, mut anchor) = (self.stand.at - start, self.stand.anchor - start);
        let [mut near, mut far] = self.stand.distances;
        let known = |place: usize, at: usize| (place < at) & (at.wrapping_sub(place) <= reach);
        'matches: while at < stop {
            let (from, mut place, mut matched);
            loop {
                let bytes = load8(data, at);
                let long_slot = &mut long[hash8(bytes) & long_mask];
                let short_slot = &mut short[hash_short::<FOUR>(bytes) & short_mask];
                let by_long = long_slot.wrapping_sub(zero) as usize;
                let by_short = short_slot.wrapping_sub(zero) as usize;
                let here = zero.wrapping_add(at as u32);
                *long_slot = here;
                *short_slot = here;
                if load4(data, at + 1) == load4(data, at + 1 - near) {
                    from = at;
                    at += 1;
                    place = at - near;
                    matched = 4 + forward(data, at + 4, place + 4, data.len());
                    break;
                }
                // Whether a place is known nobody can predict. Looking at another one instead needs no branch, and the box
                // keeps the compiler from asking before the bytes are equal, which takes half as long again.
                let safe = select_unpredictable(by_long < at, by_long, 0);
                if load8(data, safe) == bytes && black_box(known(by_long, at)) {
                    from = at;
                    place = by_long;
                    matched = 8 + forward(data, at + 8, place + 8, data.len());
                    break;
                }
                let safe = select_unpredictable(by_short < at, by_short, 0);
                if load4(data, safe) == bytes as u32 && black_box(known(by_short, at)) {
                    from = at;
                    place = by_short;
                    matched = 4 + forward(data, at + 4, place + 4, data.len());
                    // One further there may be a longer one.
                    let next = load8(data, at + 1);
                    let slot = &mut long[hash8(next) & long_mask];
                    let by_next = slot.wrapping_sub(zero) as usize;
                    *slot = here.wrapping_add(1);
                    if known(by_next, at + 1) && load8(data, by_next) == next {
                        let further = 8 + forward(data, at + 9, by_next + 8, data.len());
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
                let bytes = load8(data, at + matched);
                fetch(&long[hash8(bytes) & long_mask]);
                fetch(&short[hash_short::<FOUR>(bytes) & short_mask]);
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
            let seq = Seq::new((at - anchor) as u32, matched as u32, distance as u32);
            parse.take(data, anchor, seq);
            at += matched;
            anchor = at;
            if at < end {
                // A position behind the first, and two in front of the next one, so that the next time is longer.
                let count = |position: usize| zero.wrapping_add(position as u32);
                let bytes = load8(data, from + 2);
                long[hash8(bytes) & long_mask] = count(from + 2);
                short[hash_short::<FOUR>(bytes) & short_mask] = count(from + 2);
                long[hash8(load8(data, at - 2)) & long_mask] = count(at - 2);
                short[hash_short::<FOUR>(load8(data, at - 1)) & short_mask] = count(at - 1);
                // The frame has more than the first distances behind it here, for a match has ended.
                while at < end && load4(data, at) == load4(data, at - far) {
                    matched = 4 + forward(data, at + 4, at + 4 - far, data.len());
                    std::mem::swap(&mut near, &mut far);
                    let bytes = load8(data, at);
                    long[hash8(bytes) & long_mask] = count(at);
                    short[hash_short::<FOUR>(bytes) & short_mask] = count(at);
                    parse.take(data, anchor, Seq::new(0, matched as u32, near as u32));
                    at += matched;
                    anchor = at;
                }
            }
        }
        // A long step may lead behind the end.
        self.stand = Stand {
            start,
            at: start + at.min(data.len()),
            anchor: start + anchor,
            distances: [near, far],
        };
        self.high = self.high.max(self.stand.at);
    }
}
