//! The match finder of the low levels: a table by eight bytes for long matches, one by four or five
//! for short ones, and a look
//! at the latest distances.
//!
//! It indexes an input once, however many frames are made of it, and it can be asked for more where it stopped: no byte
//! is matched twice but for those behind the end of an output. What it finds starts at the frame's start at the
//! earliest, so that nothing has to be cleared between frames.

use super::block::Seq;
use crate::bytes::{forward, load4, load8, zeros};

/// The tables have so many entries.
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
    /// Where the last search ended.
    until: usize,
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
            until: 0,
            four,
        }
    }

    /// Starts on new input.
    pub(super) fn reset(&mut self) {
        self.shift = self.high.wrapping_add(self.shift) + 1;
        self.high = 0;
        if self.shift > COUNT_MAX {
            self.clear(0);
        }
    }

    /// Forgets everything, and counts from `at` on.
    fn clear(&mut self, at: usize) {
        self.long.fill(0);
        self.short.fill(0);
        self.shift = 1usize.wrapping_sub(at);
        self.high = at;
    }

    /// Starts a frame at `start`.
    pub(super) fn begin(&mut self, start: usize) {
        if start.wrapping_add(self.shift) > 2 * COUNT_MAX {
            self.clear(start);
        }
        self.start = start;
        self.at = start;
        self.anchor = start;
        self.distances = [1, 4];
    }

    /// Bytes behind the last match when the last search ended.
    pub(super) fn trailing(&self) -> usize {
        self.until - self.anchor
    }

    /// Where the last match ended.
    pub(super) fn anchor(&self) -> usize {
        self.anchor
    }

    /// Finds sequences in `data`, the input so far, from where it stopped to the end; gives each to `take` with the
    /// position of its literals.
    pub(super) fn find(&mut self, data: &[u8], take: impl FnMut(usize, Seq)) {
        if self.four {
            self.find_by::<true>(data, take);
        } else {
            self.find_by::<false>(data, take);
        }
    }

    #[inline(always)]
    fn find_by<const FOUR: bool>(&mut self, data: &[u8], mut take: impl FnMut(usize, Seq)) {
        let until = data.len();
        self.until = until;
        let Some(end) = until.checked_sub(END) else {
            return;
        };
        let (long, short) = (&mut *self.long, &mut *self.short);
        let (shift, start, reach) = (self.shift, self.start, self.reach);
        let count = |position: usize| position.wrapping_add(shift) as u32;
        let (mut at, mut anchor) = (self.at, self.anchor);
        let [mut near, mut far] = self.distances;
        let mut literals_and = |anchor: &mut usize, at: usize, matched: usize, distance: usize| {
            // fits: a window has at most 12 MiB
            take(
                *anchor,
                Seq::new((at - *anchor) as u32, matched as u32, distance as u32),
            );
            *anchor = at + matched;
        };
        while at < end {
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
            let known = |distance: usize| distance.wrapping_sub(1) < most;
            let from = at;
            let (mut matched, distance);
            if near <= most && load4(data, at + 1) == load4(data, at + 1 - near) {
                at += 1;
                matched = 4 + forward(data, at + 4, at + 4 - near, until);
                literals_and(&mut anchor, at, matched, near);
            } else {
                if known(long_distance) && load8(data, at - long_distance) == bytes {
                    matched = 8 + forward(data, at + 8, at + 8 - long_distance, until);
                    distance = long_distance;
                } else if known(short_distance) && load4(data, at - short_distance) == bytes as u32
                {
                    // One further there may be a long one.
                    let next = load8(data, at + 1);
                    let slot = &mut long[hash8(next)];
                    let next_distance = (here + 1).wrapping_sub(*slot) as usize;
                    *slot = here + 1;
                    if known(next_distance) && load8(data, at + 1 - next_distance) == next {
                        at += 1;
                        matched = 8 + forward(data, at + 8, at + 8 - next_distance, until);
                        distance = next_distance;
                    } else {
                        matched = 4 + forward(data, at + 4, at + 4 - short_distance, until);
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
                    matched = 4 + forward(data, at + 4, at + 4 - far, until);
                    std::mem::swap(&mut near, &mut far);
                    let bytes = load8(data, at);
                    long[hash8(bytes)] = count(at);
                    short[hash_short::<FOUR>(bytes)] = count(at);
                    literals_and(&mut anchor, at, matched, near);
                    at = anchor;
                }
            }
        }
        self.at = at;
        self.anchor = anchor;
        self.distances = [near, far];
        self.high = self.high.max(until);
    }
}
