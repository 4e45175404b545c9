//! The match finder of the low levels: a table by eight bytes for long matches, one by four or five
//! for short ones, and a look
//! at the latest distances.
//!
//! It indexes an input once, however many frames are made of it, and it can be asked for more where it stopped: no byte
//! is matched twice but for those behind the end of an output. What it finds starts at the frame's start at the
//! earliest, so that nothing has to be cleared between frames.

use super::block::Seq;
use super::parse::{Finder, Parse};
use crate::bytes::{forward, load4, load8, zeros};

/// The tables have so many entries. Unit: bits.
const LONG_LOG: u32 = 16;
const SHORT_LOG: u32 = 15;

/// No match starts in the last bytes. Unit: bytes.
const END: usize = 8;

/// Behind so many literals every second position is tried, behind twice as many every third, and so on.
const SKIP_LOG: usize = 8;

/// The index starts over before its count outgrows 32 bits.
const COUNT_MAX: usize = 1 << 30;

/// The finder.
pub(super) struct Pairs {
    /// Latest positions, as the index counts.
    long: Box<[u32; 1 << LONG_LOG]>,
    short: Box<[u32; 1 << SHORT_LOG]>,
    /// What is added to a position to count it, which may wrap. Positions of earlier inputs count less than any of this
    /// one.
    shift: usize,
    /// The furthest position that was indexed.
    high: usize,
    /// Where the frame starts, where the search goes on, and where the last match ended.
    start: usize,
    at: usize,
    anchor: usize,
    distances: [usize; 2],
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
        self.shift = self.high.wrapping_add(self.shift) + 1;
        self.high = 0;
        if self.shift > COUNT_MAX {
            self.clear(0);
        }
    }

    fn begin(&mut self, start: usize) {
        if start.wrapping_add(self.shift) > 2 * COUNT_MAX {
            self.clear(start);
        }
        self.start = start;
        self.at = start;
        self.anchor = start;
        self.distances = [1, 4];
    }

    fn find(&mut self, data: &[u8], until: usize, parse: &mut Parse) {
        if self.four {
            self.find_by::<true>(data, until, parse);
        } else {
            self.find_by::<false>(data, until, parse);
        }
    }

    fn position(&self) -> (usize, usize) {
        (self.anchor, self.at)
    }

    fn give(&mut self, n: usize) {
        self.anchor += n;
    }
}

impl Pairs {
    /// A finder of matches over up to `reach` bytes; short ones by four bytes, or by five.
    pub(super) fn new(reach: usize, four: bool) -> Self {
        Self {
            long: zeros(),
            short: zeros(),
            shift: 1,
            high: 0,
            start: 0,
            at: 0,
            anchor: 0,
            distances: [1, 4],
            reach,
            four,
        }
    }

    /// Forgets everything, and counts from `at` on.
    fn clear(&mut self, at: usize) {
        self.long.fill(0);
        self.short.fill(0);
        self.shift = 1usize.wrapping_sub(at);
        self.high = at;
    }

    #[inline(always)]
    fn find_by<const FOUR: bool>(&mut self, data: &[u8], until: usize, parse: &mut Parse) {
        let Some(end) = data.len().checked_sub(END) else {
            return;
        };
        let stop = until.min(end);
        let (long, short) = (&mut *self.long, &mut *self.short);
        let (shift, start, reach) = (self.shift, self.start, self.reach);
        let count = |position: usize| position.wrapping_add(shift) as u32;
        let (mut at, mut anchor) = (self.at, self.anchor);
        let [mut near, mut far] = self.distances;
        let mut literals_and = |anchor: &mut usize, at: usize, matched: usize, distance: usize| {
            // fits: a window has at most 12 MiB
            let seq = Seq::new((at - *anchor) as u32, matched as u32, distance as u32);
            parse.take(data, *anchor, seq);
            *anchor = at + matched;
        };
        while at < stop {
            let bytes = load8(data, at);
            let (long_slot, short_slot) = (
                &mut long[hash8(bytes)],
                &mut short[hash_short::<FOUR>(bytes)],
            );
            let here = count(at);
            // What was indexed for an earlier frame may lie ahead, which wraps around to far away.
            let long_distance = here.wrapping_sub(*long_slot) as usize;
            let short_distance = here.wrapping_sub(*short_slot) as usize;
            *long_slot = here;
            *short_slot = here;
            let most = (at - start).min(reach);
            // A place that is out of reach is of no use: looking at the start instead is cheap, and needs no branch.
            let place = |distance: usize, of: usize| {
                let known = distance.wrapping_sub(1) < most;
                (known, if known { of - distance } else { start })
            };
            let (long_known, long_place) = place(long_distance, at);
            let (short_known, short_place) = place(short_distance, at);
            let from = at;
            let (mut matched, distance);
            if near <= most && load4(data, at + 1) == load4(data, at + 1 - near) {
                at += 1;
                matched = 4 + forward(data, at + 4, at + 4 - near, data.len());
                literals_and(&mut anchor, at, matched, near);
            } else {
                if long_known & (load8(data, long_place) == bytes) {
                    matched = 8 + forward(data, at + 8, at + 8 - long_distance, data.len());
                    distance = long_distance;
                } else if short_known & (load4(data, short_place) == bytes as u32) {
                    // One further there may be a long one.
                    let next = load8(data, at + 1);
                    let slot = &mut long[hash8(next)];
                    let next_distance = (here + 1).wrapping_sub(*slot) as usize;
                    *slot = here + 1;
                    let (next_known, next_place) = place(next_distance, at + 1);
                    if next_known & (load8(data, next_place) == next) {
                        at += 1;
                        matched = 8 + forward(data, at + 8, at + 8 - next_distance, data.len());
                        distance = next_distance;
                    } else {
                        matched = 4 + forward(data, at + 4, at + 4 - short_distance, data.len());
                        distance = short_distance;
                    }
                } else {
                    at += 1 + ((at - anchor) >> SKIP_LOG);
                    continue;
                }
                while at > anchor
                    && at - distance > start
                    && data[at - 1] == data[at - 1 - distance]
                {
                    at -= 1;
                    matched += 1;
                }
                far = near;
                near = distance;
                literals_and(&mut anchor, at, matched, distance);
            }
            at = anchor;
            if at < end {
                // Two positions in front of the next one, and one behind the first, so that the next time is longer.
                for position in [from + 2, at - 2] {
                    let bytes = load8(data, position);
                    long[hash8(bytes)] = count(position);
                    short[hash_short::<FOUR>(bytes)] = count(position);
                }
                while at < end
                    && far <= (at - start).min(reach)
                    && load4(data, at) == load4(data, at - far)
                {
                    matched = 4 + forward(data, at + 4, at + 4 - far, data.len());
                    std::mem::swap(&mut near, &mut far);
                    let bytes = load8(data, at);
                    long[hash8(bytes)] = count(at);
                    short[hash_short::<FOUR>(bytes)] = count(at);
                    literals_and(&mut anchor, at, matched, near);
                    at = anchor;
                }
            }
        }
        // A long step may lead behind the end.
        self.at = at.min(data.len());
        self.anchor = anchor;
        self.distances = [near, far];
        self.high = self.high.max(at);
    }
}
