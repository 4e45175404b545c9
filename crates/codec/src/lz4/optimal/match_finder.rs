//! Where a gram occurs before, and which of the matches over it is the best.
//!
//! A table of latest positions by hash, and a ring of distances to the position before with the same hash: a chain for each
//! gram, the latest first.

use std::ops::Range;

use crate::bytes::{load4, match_len, match_len_backward};

/// The index has so many heads, of which so many are used where chains are followed far or are short anyway: they stay
/// closer to the processor. Unit: bits.
const HASH_LOG: u32 = 17;
const HASH_LOG_SMALL: u32 = 16;
pub(super) const HEADS: usize = 1 << HASH_LOG;

/// Distances that can be coded, and positions that the ring remembers. Unit: bytes.
pub(super) const DISTANCE: usize = 1 << 16;

/// Positions are indexed so many at a time, ahead of the search. Matches are that much shorter-sighted, so that what
/// lies ahead never takes the place of what is still in reach. As many as a word has bits. Unit: bytes.
pub(super) const INDEX_BATCH: usize = 64;

#[inline(always)]
fn hash(gram: u32, log: u32) -> usize {
    (gram.wrapping_mul(2_654_435_761) >> (32 - log)) as usize % HEADS
}

/// Indexes positions. Of up to 64, returns a bit for each that has an earlier one with the same hash, not in front of
/// `at`. `COMPARE`: with the same gram; those behind it are then missed where two grams share a hash, which is rare.
#[inline(always)]
pub(super) fn index_positions<const COMPARE: bool>(
    heads: &mut [u32; HEADS],
    ring: &mut [u16; DISTANCE],
    input: &[u8],
    (positions, at): (Range<usize>, usize),
    shift: usize,
) -> u64 {
    let mut known = 0;
    for (i, position) in positions.enumerate() {
        let gram = load4(input, position);
        let log = if COMPARE { HASH_LOG } else { HASH_LOG_SMALL };
        let slot = &mut heads[hash(gram, log)];
        let count = position.wrapping_add(shift) as u32 + 1;
        let delta = count - *slot;
        *slot = count;
        let delta = if delta < DISTANCE as u32 { delta } else { 0 };
        ring[position % DISTANCE] = delta as u16;
        let near = (delta as usize).wrapping_sub(1) < position - at;
        let near = near & (!COMPARE || load4(input, position - delta as usize) == gram);
        known |= u64::from(near) << (i % INDEX_BATCH);
    }
    known
}

/// Finds the match over the gram at `g` that starts earliest, but not before `base`, and of these the one that ends
/// last, but not behind `match_end`. Returns bytes before the gram, bytes behind it and the distance.
///
/// The gram ends at `match_end` at the latest, which is within `src`; that bounds all loads at `g` and in front of it,
/// and so those at the earlier `c`.
#[inline(always)]
pub(super) fn find_match(
    src: &[u8],
    at: usize,
    g: usize,
    (base, match_end): (usize, usize),
    ring: &[u16; DISTANCE],
    attempts: usize,
) -> Option<(usize, usize, usize)> {
    let gram = load4(src, g);
    let most = g.min(DISTANCE - INDEX_BATCH);
    let mut distance = 0;
    let mut left = attempts;
    // The latest one.
    let c = loop {
        let delta = usize::from(ring[(at + g - distance) % DISTANCE]);
        distance += delta;
        if delta == 0 || distance > most || left == 0 {
            return None;
        }
        left -= 1;
        let c = g - distance;
        if load4(src, c) == gram {
            break c;
        }
    };
    let mut back = match_len_backward(src, g, c, c.min(g - base));
    let mut ahead = match_len(src, g + 4, c + 4, match_end);
    let mut best = distance;
    while left > 0 {
        // What a better one has in common right before the best so far, or right behind.
        let before = load4(src, (g - back).saturating_sub(1));
        let behind = load4(src, g + ahead + 1);
        let c = loop {
            let delta = usize::from(ring[(at + g - distance) % DISTANCE]);
            distance += delta;
            left -= 1;
            if delta == 0 || distance > most || distance + back >= g {
                return Some((back, ahead, best));
            }
            let c = g - distance;
            // Must start earlier, or end later.
            if (load4(src, c - back - 1) == before) | (load4(src, c + ahead + 1) == behind)
                && load4(src, c) == gram
            {
                break c;
            }
            if left == 0 {
                return Some((back, ahead, best));
            }
        };
        let back_here = match_len_backward(src, g, c, c.min(g - base));
        if back_here < back {
            continue;
        }
        let ahead_here = match_len(src, g + 4, c + 4, match_end);
        if back_here > back || ahead_here > ahead {
            (back, ahead) = (back_here, ahead_here);
            best = distance;
        }
    }
    Some((back, ahead, best))
}
