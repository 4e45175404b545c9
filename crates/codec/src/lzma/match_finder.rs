//! Match finders: the nearest match of each length at a position.
//!
//! A hash chain links positions with the same hash of four bytes, latest first. A binary tree holds such positions
//! ordered by the bytes that follow, with the latest at its root, so that one walk down meets increasingly long
//! matches.
//!
//! Positions are numbered consecutively across inputs, so that nothing is cleared between them: entries of an earlier
//! input have numbers below `first` and count as absent.

use crate::bytes::{byte, load4, load8};
use crate::huge_pages::HugeTable;

use super::model::LEN_MAX;

/// A match of the bytes at a position with earlier ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Match {
    /// Length of the match. Unit: bytes.
    pub(crate) len: u32,
    /// Distance, counted from 0.
    pub(crate) dist: u32,
}

/// Matches at one position, by increasing length and distance.
pub(crate) struct Matches {
    list: [Match; 512],
    count: usize,
}

impl Default for Matches {
    fn default() -> Self {
        Self {
            list: [Match::default(); 512],
            count: 0,
        }
    }
}

impl Matches {
    pub(crate) fn list(&self) -> &[Match] {
        &self.list[..self.count]
    }

    /// Returns the longest match.
    pub(crate) fn best(&self) -> Match {
        self.list().last().copied().unwrap_or_default()
    }

    #[inline(always)]
    fn push(&mut self, len: usize, dist: u32) {
        self.list[self.count & 511] = Match {
            len: len as u32,
            dist,
        };
        self.count += 1;
    }
}

/// Limits of a search.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SearchLimits {
    /// Length of a match that ends the search. Unit: bytes, 8 to [`LEN_MAX`].
    pub(crate) nice: usize,
    /// Largest number of positions visited.
    pub(crate) depth: u32,
    /// Price difference below which the optimal parser ignores a path. Unit: sixteenths of a bit.
    pub(crate) margin: u32,
}

/// Sizes of the hashes of two and of three bytes. Unit: bits.
const TWO_BITS: u32 = 10;
const THREE_BITS: u32 = 16;

/// Distance ahead at which table entries are prefetched. Unit: bytes.
const AHEAD: usize = 12;

/// Number of positions from which on both children are prefetched before the comparison decides which one is visited.
const FAR: usize = 1 << 20;

/// State that both finders share: the latest position with each hash, and the numbering.
struct HashHeads {
    two: HugeTable,
    three: HugeTable,
    four: HugeTable,
    /// Size of the hash of four bytes for this input. Unit: bits.
    bits: u32,
    /// Number of position 0 of this input.
    first: u32,
    /// Next position to be entered.
    at: usize,
    /// Largest match distance. Unit: bytes.
    reach: u32,
}

/// Latest earlier positions with the same two, three and four bytes.
struct HashHits {
    two: u32,
    three: u32,
    four: u32,
}

fn four_bits(places: usize) -> u32 {
    places.max(2).ilog2().clamp(10, 21)
}

#[inline(always)]
fn hash_four(word: u32, bits: u32) -> usize {
    (word.wrapping_mul(0x9e37_79b1) >> (32 - bits)) as usize
}

#[inline(always)]
fn hash_three(word: u32) -> usize {
    ((word << 8).wrapping_mul(0x9e37_79b1) >> (32 - THREE_BITS)) as usize
}

#[inline(always)]
fn hash_two(word: u32) -> usize {
    ((word << 16).wrapping_mul(0x9e37_79b1) >> (32 - TWO_BITS)) as usize
}

/// Prefetches the cache line of `table[index]`.
#[inline(always)]
fn prefetch<T>(table: &[T], index: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch reads nothing; it accepts any address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(table.as_ptr().wrapping_add(index).cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (table, index);
}

/// Returns `table[index]`. The caller keeps the index within the table by a mask or a shift.
#[inline(always)]
fn get(table: &HugeTable, index: usize) -> u32 {
    debug_assert!(index < table.len());
    // SAFETY: every caller names what keeps `index` within the table.
    unsafe { *table.get_unchecked(index) }
}

#[inline(always)]
fn set(table: &mut HugeTable, index: usize, value: u32) {
    debug_assert!(index < table.len());
    // SAFETY: every caller names what keeps `index` within the table.
    unsafe { *table.get_unchecked_mut(index) = value }
}

impl HashHeads {
    fn new(dict: usize) -> Option<Self> {
        Some(Self {
            two: HugeTable::zeros(1 << TWO_BITS)?,
            three: HugeTable::zeros(1 << THREE_BITS)?,
            four: HugeTable::zeros(1 << four_bits(dict))?,
            bits: 0,
            first: 1,
            at: 0,
            reach: 0,
        })
    }

    /// Starts an input. Returns the number of positions kept, a power of two of at most `ring`.
    fn begin(&mut self, len: usize, dict: usize, ring: usize) -> usize {
        let next = self.first as usize + self.at;
        if next + len >= u32::MAX as usize {
            for table in [&mut self.two, &mut self.three, &mut self.four] {
                table.fill(0);
            }
            self.first = 1;
        } else {
            self.first = next as u32;
        }
        self.at = 0;
        let places = dict.min(len).max(1);
        self.bits = four_bits(places);
        let kept = places.next_power_of_two().min(ring);
        // A position overwrites the one a whole ring before it.
        self.reach = dict.min(kept - usize::from(kept < len)) as u32;
        kept
    }

    /// Returns the largest match distance at this position. Unit: bytes.
    #[inline(always)]
    fn limit(&self) -> u32 {
        self.reach.min(self.at as u32)
    }

    /// Returns the number of this position.
    #[inline(always)]
    fn number(&self) -> u32 {
        self.first + self.at as u32
    }

    /// Enters this position, of which four bytes are known. Returns distances to the latest candidates, which may be
    /// out of reach.
    #[inline(always)]
    fn enter(&mut self, word: u32) -> HashHits {
        let number = self.number();
        // The shift of each hash keeps it within its table.
        let swap = |table: &mut HugeTable, index: usize| {
            let before = get(table, index);
            set(table, index, number);
            number.wrapping_sub(before)
        };
        HashHits {
            two: swap(&mut self.two, hash_two(word)),
            three: swap(&mut self.three, hash_three(word)),
            four: swap(&mut self.four, hash_four(word, self.bits)),
        }
    }
}

/// Returns the number of equal bytes at `a` and `b < a`, up to `most`, of which `len` are known to be equal. Also
/// returns whether the next byte at `b` is smaller.
#[inline(always)]
fn compare(data: &[u8], a: usize, b: usize, mut len: usize, most: usize) -> (usize, bool) {
    while len + 8 <= most {
        // `most` bytes from `a` on are within the data.
        let (x, y) = (load8(data, a + len), load8(data, b + len));
        if x != y {
            let more = (x ^ y).trailing_zeros() & 56;
            return (
                len + more as usize / 8,
                (y >> more & 0xff) < (x >> more & 0xff),
            );
        }
        len += 8;
    }
    while len < most {
        let (x, y) = (byte(data, a + len), byte(data, b + len));
        if x != y {
            return (len, y < x);
        }
        len += 1;
    }
    (len, false)
}

/// Finds the matches at each position in turn.
pub(crate) trait MatchFinder: Send {
    /// Starts an input of `len` bytes.
    fn begin(&mut self, len: usize);
    /// Returns the next position to be entered.
    fn at(&self) -> usize;
    /// Enters the next position and returns its matches. The longest is extended as far as possible.
    fn find(&mut self, data: &[u8], out: &mut Matches);
    /// Enters the next `count` positions.
    fn skip(&mut self, data: &[u8], count: usize);
}

/// Finder of the levels that visit few positions.
pub(crate) struct HashChain {
    heads: HashHeads,
    next: HugeTable,
    limits: SearchLimits,
    dict: usize,
    mask: usize,
}

/// Finder of the levels that visit many positions.
pub(crate) struct BinaryTree {
    heads: HashHeads,
    /// Children of each position: the latest smaller and the latest larger one.
    sons: HugeTable,
    limits: SearchLimits,
    dict: usize,
    mask: usize,
}

/// Adds the matches of two and three bytes, which neither chain nor tree contains. Returns the length reached.
#[inline(always)]
fn short(
    data: &[u8],
    at: usize,
    seen: &HashHits,
    limit: u32,
    most: usize,
    out: &mut Matches,
) -> usize {
    let mut best = 1;
    for dist in [seen.two, seen.three] {
        if dist <= limit && dist > out.best().dist && dist > 0 {
            let (len, _) = compare(data, at, at - dist as usize, 0, most);
            if len > best {
                best = len;
                out.push(len, dist - 1);
            }
        }
    }
    best
}

/// Extends the longest match as far as possible.
#[inline(always)]
fn lengthen(data: &[u8], at: usize, nice: usize, out: &mut Matches) {
    if let Some(last) = out.list[..out.count].last_mut()
        && last.len as usize == nice
    {
        let most = (data.len() - at).min(LEN_MAX);
        let from = at - last.dist as usize - 1;
        last.len = compare(data, at, from, nice, most).0 as u32;
    }
}

impl HashChain {
    pub(crate) fn new(dict: usize, limits: SearchLimits) -> Option<Self> {
        Some(Self {
            heads: HashHeads::new(dict)?,
            next: HugeTable::zeros(dict.next_power_of_two())?,
            limits,
            dict,
            mask: 0,
        })
    }

    #[inline(always)]
    fn enter(&mut self, data: &[u8]) -> HashHits {
        let at = self.heads.at;
        if at + AHEAD + 4 <= data.len() {
            let hash = hash_four(load4(data, at + AHEAD), self.heads.bits);
            prefetch(&self.heads.four, hash);
        }
        let seen = self.heads.enter(load4(data, at));
        let number = self.heads.number();
        // The mask keeps the position within the ring.
        set(
            &mut self.next,
            at & self.mask,
            number.wrapping_sub(seen.four),
        );
        seen
    }
}

impl MatchFinder for HashChain {
    fn begin(&mut self, len: usize) {
        self.mask = self.heads.begin(len, self.dict, self.next.len()) - 1;
    }

    fn at(&self) -> usize {
        self.heads.at
    }

    #[inline(always)]
    fn find(&mut self, data: &[u8], out: &mut Matches) {
        out.count = 0;
        let at = self.heads.at;
        let most = (data.len() - at).min(self.limits.nice);
        if most < 4 {
            self.heads.at += 1;
            return;
        }
        let limit = self.heads.limit();
        let seen = self.enter(data);
        let mut best = short(data, at, &seen, limit, most, out);
        let mut dist = seen.four;
        let mut depth = self.limits.depth;
        let word = load4(data, at);
        best = best.max(3);
        while best < most && depth > 0 && dist <= limit {
            depth -= 1;
            let from = at - dist as usize;
            // `best < most`, so the next byte is within the data.
            if load4(data, from) == word && byte(data, from + best) == byte(data, at + best) {
                let (len, _) = compare(data, at, from, 4, most);
                if len > best {
                    best = len;
                    out.push(len, dist - 1);
                }
            }
            let before = get(&self.next, from & self.mask);
            dist = self.heads.number().wrapping_sub(before);
        }
        lengthen(data, at, most, out);
        self.heads.at += 1;
    }

    #[inline(always)]
    fn skip(&mut self, data: &[u8], count: usize) {
        for _ in 0..count {
            if self.heads.at + 4 <= data.len() {
                self.enter(data);
            }
            self.heads.at += 1;
        }
    }
}

impl BinaryTree {
    pub(crate) fn new(dict: usize, limits: SearchLimits) -> Option<Self> {
        Some(Self {
            heads: HashHeads::new(dict)?,
            sons: HugeTable::zeros(2 * dict.next_power_of_two())?,
            limits,
            dict,
            mask: 0,
        })
    }

    #[inline(always)]
    fn enter(&mut self, data: &[u8]) -> HashHits {
        let at = self.heads.at;
        if at + AHEAD + 4 <= data.len() {
            let heads = &self.heads;
            prefetch(&heads.four, hash_four(load4(data, at + AHEAD), heads.bits));
            let near = at + AHEAD / 2;
            let root = get(&heads.four, hash_four(load4(data, near), heads.bits));
            if root >= heads.first {
                let place = (root - heads.first) as usize;
                prefetch(data, place);
                prefetch(&self.sons, 2 * (place & self.mask));
            }
        }
        self.heads.enter(load4(data, at))
    }

    /// Makes this position the root of its tree: walks down from the position at distance `dist` and sorts each one
    /// visited to the left or right. Reports matches longer than `best` if requested.
    #[inline(always)]
    fn walk(
        &mut self,
        data: &[u8],
        mut dist: u32,
        most: usize,
        mut best: usize,
        mut out: Option<&mut Matches>,
    ) {
        let at = self.heads.at;
        let (limit, mask) = (self.heads.limit(), self.mask);
        let far = mask >= FAR;
        let number = self.heads.number();
        // The mask keeps each position within the ring, and the table has two numbers for each.
        let mut smaller = 2 * (at & mask);
        let mut larger = smaller + 1;
        let (mut smaller_len, mut larger_len) = (0, 0);
        let mut depth = self.limits.depth;
        loop {
            if dist > limit || depth == 0 {
                set(&mut self.sons, smaller, 0);
                set(&mut self.sons, larger, 0);
                return;
            }
            depth -= 1;
            let from = at - dist as usize;
            let pair = 2 * (from & mask);
            if far {
                for son in [get(&self.sons, pair), get(&self.sons, pair + 1)] {
                    let place = son.wrapping_sub(self.heads.first) as usize;
                    prefetch(data, place);
                    prefetch(&self.sons, 2 * (place & mask));
                }
            }
            let known = usize::min(smaller_len, larger_len);
            let (len, is_smaller) = compare(data, at, from, known, most);
            if len > best {
                best = len;
                if let Some(out) = &mut out {
                    out.push(len, dist - 1);
                }
            }
            let (left, right) = (get(&self.sons, pair), get(&self.sons, pair + 1));
            if len == most {
                set(&mut self.sons, smaller, left);
                set(&mut self.sons, larger, right);
                return;
            }
            let this = number - dist;
            let next = if is_smaller {
                set(&mut self.sons, smaller, this);
                smaller = pair + 1;
                smaller_len = len;
                right
            } else {
                set(&mut self.sons, larger, this);
                larger = pair;
                larger_len = len;
                left
            };
            dist = number.wrapping_sub(next);
        }
    }
}

impl MatchFinder for BinaryTree {
    fn begin(&mut self, len: usize) {
        self.mask = self.heads.begin(len, self.dict, self.sons.len() / 2) - 1;
    }

    fn at(&self) -> usize {
        self.heads.at
    }

    #[inline(always)]
    fn find(&mut self, data: &[u8], out: &mut Matches) {
        out.count = 0;
        let at = self.heads.at;
        let most = (data.len() - at).min(self.limits.nice);
        if most < 4 {
            self.heads.at += 1;
            return;
        }
        let limit = self.heads.limit();
        let seen = self.enter(data);
        let best = short(data, at, &seen, limit, most, out);
        self.walk(data, seen.four, most, best, Some(out));
        lengthen(data, at, most, out);
        self.heads.at += 1;
    }

    #[inline(always)]
    fn skip(&mut self, data: &[u8], count: usize) {
        for _ in 0..count {
            let at = self.heads.at;
            let most = (data.len() - at).min(self.limits.nice);
            if most >= 4 {
                let seen = self.enter(data);
                self.walk(data, seen.four, most, usize::MAX, None);
            }
            self.heads.at += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Input with a small alphabet and some long repetitions.
    fn sample(len: usize, seed: u64) -> Vec<u8> {
        let mut state = seed;
        let mut out = Vec::with_capacity(len + 300);
        while out.len() < len {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            let draw = (state >> 33) as usize;
            if draw.is_multiple_of(40) && out.len() > 400 {
                let from = draw / 40 % (out.len() - 300);
                out.extend_from_within(from..from + 20 + draw % 280);
            } else {
                out.push(b'a' + (draw % 5) as u8);
            }
        }
        out.truncate(len);
        out
    }

    /// Returns the nearest position within reach for each length, by comparison with all.
    fn expected(data: &[u8], at: usize, reach: usize, nice: usize) -> Vec<Match> {
        let most = (data.len() - at).min(nice);
        let mut out: Vec<Match> = Vec::new();
        for dist in 1..=at.min(reach) {
            let (len, _) = compare(data, at, at - dist, 0, most);
            if len >= 2 && out.last().is_none_or(|m| m.len < len as u32) {
                out.push(Match {
                    len: len as u32,
                    dist: dist as u32 - 1,
                });
            }
            if len == most {
                break;
            }
        }
        out
    }

    fn limits(nice: usize) -> SearchLimits {
        SearchLimits {
            nice,
            depth: 100_000,
            margin: 0,
        }
    }

    /// Selects matches of at least four bytes: the tables of two and three bytes hold only the latest position with a
    /// hash.
    fn long(list: &[Match]) -> Vec<Match> {
        let long = list.iter().filter(|m| m.len >= 4);
        long.copied().collect()
    }

    fn finds_all(finder: &mut impl MatchFinder, nice: usize, dict: usize) {
        // Several inputs, so that the second begins among entries of the first.
        for (seed, len) in [(1, 3000), (2, 500), (3, 1), (4, 5000)] {
            let data = sample(len, seed);
            finder.begin(data.len());
            let mut out = Matches::default();
            while finder.at() < data.len() {
                let at = finder.at();
                if at % 7 == 3 {
                    finder.skip(&data, (data.len() - at).min(at % 5));
                    if finder.at() == data.len() {
                        break;
                    }
                }
                let at = finder.at();
                finder.find(&data, &mut out);
                let reach = reach(data.len(), dict);
                let mut expected = long(&expected(&data, at, reach, nice));
                if let Some(last) = expected.last_mut()
                    && last.len as usize == (data.len() - at).min(nice)
                {
                    let most = (data.len() - at).min(LEN_MAX);
                    let from = at - last.dist as usize - 1;
                    last.len = compare(&data, at, from, 0, most).0 as u32;
                }
                assert_eq!(long(out.list()), expected, "{len} at {at}");
                for m in out.list() {
                    let from = at - m.dist as usize - 1;
                    let most = data.len() - at;
                    assert!(compare(&data, at, from, 0, most).0 >= m.len as usize);
                }
            }
        }
    }

    /// A ring of a power of two positions does not hold the one a whole ring back.
    fn reach(len: usize, dict: usize) -> usize {
        if dict.is_power_of_two() && len > dict {
            dict - 1
        } else {
            dict
        }
    }

    #[test]
    fn a_tree_finds_the_nearest_match_of_every_length() {
        for (nice, dict) in [(64, 8192), (16, 1000), (LEN_MAX, 1024)] {
            finds_all(
                &mut BinaryTree::new(dict, limits(nice)).unwrap(),
                nice,
                dict,
            );
        }
    }

    #[test]
    fn a_chain_finds_the_nearest_match_of_every_length() {
        for (nice, dict) in [(64, 8192), (16, 1000), (LEN_MAX, 1024)] {
            finds_all(&mut HashChain::new(dict, limits(nice)).unwrap(), nice, dict);
        }
    }

    #[test]
    fn positions_restart_before_they_overflow() {
        let data = sample(2000, 5);
        let mut matches = [Vec::new(), Vec::new()];
        for (first, found) in [1, u32::MAX - 2500].into_iter().zip(&mut matches) {
            let mut finder = BinaryTree::new(4096, limits(64)).unwrap();
            finder.heads.first = first;
            for _ in 0..3 {
                finder.begin(data.len());
                let mut out = Matches::default();
                while finder.at() < data.len() {
                    finder.find(&data, &mut out);
                    found.extend_from_slice(out.list());
                }
            }
        }
        assert_eq!(matches[0], matches[1]);
    }
}
