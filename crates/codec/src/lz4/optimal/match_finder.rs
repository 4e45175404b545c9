//! Hash chains over sequences of four bytes ("grams"), and the search for the best match over a gram.
//!
//! A table holds the latest position of each hash, and a ring the distances to the previous position with the same
//! hash: a chain for each gram, latest position first.

use std::ops::Range;

use crate::bytes::{load4, match_len, match_len_backward};

/// Number of heads of the index. Fewer are used if chains are followed far or are short anyway: they stay in a nearer
/// cache. Unit: bits.
const HASH_LOG: u32 = 17;
const HASH_LOG_SMALL: u32 = 16;
pub(super) const HEADS: usize = 1 << HASH_LOG;

/// Number of distances that can be encoded, and of positions that the ring holds. Unit: bytes.
pub(super) const DISTANCE: usize = 1 << 16;

/// Number of positions that are indexed at a time, ahead of the search: the bits of a word. Unit: bytes.
///
/// The largest match distance is shorter by this number, so that positions ahead never replace one that is still in
/// reach.
pub(super) const INDEX_BATCH: usize = 64;

#[inline(always)]
fn hash(gram: u32, log: u32) -> usize {
    (gram.wrapping_mul(2_654_435_761) >> (32 - log)) as usize % HEADS
}

/// Indexes positions. For each of up to 64, the returned word has a bit set if an earlier position from `at` on has
/// the same hash.
///
/// `COMPARE`: if it has the same gram. Older positions are then missed where two grams share a hash, which is rare.
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
/// last, but not after `match_end`. Returns the bytes before the gram, the bytes after it and the distance.
///
/// The gram ends at `match_end` at the latest, which is within `src`. That bounds all loads at `g` and before it, and
/// therefore those at the earlier `c`.
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
    // The latest position with the same gram.
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
        // A better match has the bytes right before or right after the best one in common.
        let before = load4(src, (g - back).saturating_sub(1));
        let next_bytes = load4(src, g + ahead + 1);
        let c = loop {
            let delta = usize::from(ring[(at + g - distance) % DISTANCE]);
            distance += delta;
            left -= 1;
            if delta == 0 || distance > most || distance + back >= g {
                return Some((back, ahead, best));
            }
            let c = g - distance;
            // Must start earlier, or end later.
            if (load4(src, c - back - 1) == before) | (load4(src, c + ahead + 1) == next_bytes)
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
