//! The match finder of the middle levels: rows of earlier positions by hash, told apart by one more byte of it, and a look
//! one or two positions ahead before a match is taken.
//!
//! ```text
//!  hash ──► row: | tag | tag | tag | ... 32    one comparison of all tags with the one that is looked for
//!                | tag | tag | tag | ...       another: these are of the two bytes behind those that are hashed
//!                | pos | pos | pos | ...       only where tags are equal is a position looked at, latest first
//! ```
//!
//! Where both tags are equal the match is one of two bytes more, as nearly all are that are longer than the one before; only if
//! there is none is anybody else looked at.
//!
//! As the finder of the low levels, it indexes an input once, however many frames are made of it.

use super::block::Sequence;
use super::position::{PositionCounter, SearchState};
use super::sequences::{MatchFinder, SequenceStore};
use crate::bytes::{load4, load8, match_len, prefetch};

/// A row has so many positions.
const ROW: usize = 32;

/// No match starts in the last bytes. Unit: bytes.
const END: usize = 8;

/// Behind so many literals every second position is tried, behind twice as many every third, and so on. Unit: bits.
const SKIP_LOG: usize = 8;

/// Of longer matches only the first and the last positions are indexed. Unit: bytes.
const GAP: usize = 384;
const GAP_FIRST: usize = 96;
const GAP_LAST: usize = 32;

/// Rows are fetched into the cache so far ahead. Unit: bytes.
const AHEAD: usize = 8;

/// A row's tags: by what is hashed, and by the bytes behind it. One line of the cache.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Tags {
    hashed: [u8; ROW],
    behind: [u8; ROW],
}

/// A row's positions as the index counts, 0 for none: two lines of the cache.
#[derive(Clone, Copy)]
#[repr(align(128))]
struct Positions([u32; ROW]);

/// The finder.
pub(super) struct RowHash {
    tags: Vec<Tags>,
    positions: Vec<Positions>,
    /// The latest entry of each row.
    heads: Vec<u8>,
    count: PositionCounter,
    /// The next position to index.
    next: usize,
    /// Hashes of the positions to index next.
    ahead: [u32; AHEAD],
    state: SearchState,
    reach: usize,
    /// Entries with equal tags looked at per search.
    attempts: u32,
    /// Positions looked ahead.
    depth: u32,
    /// Bytes that are hashed, as a shift. Unit: bits.
    hashed: u32,
    /// What a hash is shifted by to make row and tag: little input has few rows, which stay in the cache. Unit: bits.
    shorten: u32,
}

/// What a search found: length and distance.
#[derive(Clone, Copy)]
struct Found {
    len: usize,
    distance: usize,
}

/// How a match is judged.
#[derive(Clone, Copy)]
struct Match {
    start: usize,
    len: usize,
    distance: usize,
    /// The bits that the distance takes, roughly; 0 for the latest one.
    bits: i64,
}

fn bits(distance: usize) -> i64 {
    i64::from((distance + 3).ilog2())
}

/// The row that a hash is for.
#[inline(always)]
fn row_of(hash: u32) -> usize {
    (hash >> 8) as usize & 0xffff
}

impl RowHash {
    /// A finder for outputs of `cluster` bytes; the rest as for [`RowHash::new`].
    pub(super) fn for_cluster(
        cluster: usize,
        reach: usize,
        search: u32,
        depth: u32,
        four: bool,
    ) -> Self {
        Self::new((2 + cluster.ilog2()).min(20), reach, search, depth, four)
    }

    /// A finder with 2^`log` positions of matches over up to `reach` bytes, which looks at 2^`search` of them at a time
    /// and `depth` positions ahead. `four`: matches are found by four bytes, or by five.
    fn new(log: u32, reach: usize, search: u32, depth: u32, four: bool) -> Self {
        let rows = (1 << log) / ROW;
        Self {
            tags: vec![
                Tags {
                    hashed: [0; ROW],
                    behind: [0; ROW]
                };
                rows
            ],
            positions: vec![Positions([0; ROW]); rows],
            heads: vec![0; rows],
            count: PositionCounter::new(),
            next: 0,
            ahead: [0; AHEAD],
            state: SearchState::new(0),
            reach,
            attempts: 1 << search.min(ROW.ilog2()),
            depth,
            hashed: if four { 32 } else { 24 },
            shorten: 0,
        }
    }

    /// Forgets everything.
    fn clear(&mut self) {
        for row in &mut self.positions {
            row.0.fill(0);
        }
    }

    /// The tag of what is behind, the row, and the tag of what is hashed, one number.
    #[inline(always)]
    fn hash(&self, data: &[u8], at: usize) -> u32 {
        let bytes = load8(data, at);
        let product = (bytes << self.hashed).wrapping_mul(0xCF1B_BCDC_B7A5_6463);
        let behind = u32::from((bytes >> (64 - self.hashed)) as u16).wrapping_mul(0x9E37_79B1);
        // fits: 2^23 rows and tags at most
        (product >> self.shorten) as u32 | behind >> 24 << 24
    }

    /// Hashes a position, and has its row fetched.
    #[inline(always)]
    fn announce(&mut self, data: &[u8], at: usize, end: usize) {
        if at <= end {
            let hash = self.hash(data, at);
            self.ahead[at % AHEAD] = hash;
            prefetch(&self.tags[row_of(hash)]);
            let positions = &self.positions[row_of(hash)].0;
            prefetch(&positions[0]);
            prefetch(&positions[ROW / 2]);
        }
    }

    /// Indexes a position whose hash was announced.
    #[inline(always)]
    fn put(&mut self, at: usize) -> u32 {
        let hash = self.ahead[at % AHEAD];
        let row = row_of(hash);
        let head = self.heads[row].wrapping_sub(1) % ROW as u8;
        self.heads[row] = head;
        let tags = &mut self.tags[row];
        tags.hashed[usize::from(head)] = hash as u8;
        tags.behind[usize::from(head)] = (hash >> 24) as u8;
        self.positions[row].0[usize::from(head)] = self.count.of(at);
        hash
    }

    /// Indexes everything before `to`, which is at most `end`.
    #[inline(always)]
    fn index(&mut self, data: &[u8], to: usize, end: usize) {
        if to > self.next + GAP {
            let stop = self.next + GAP_FIRST;
            self.index_all(data, stop, end);
            self.next = to - GAP_LAST;
            self.announce_all(data, end);
        }
        self.index_all(data, to, end);
    }

    #[inline(always)]
    fn index_all(&mut self, data: &[u8], to: usize, end: usize) {
        while self.next < to {
            self.put(self.next);
            self.announce(data, self.next + AHEAD, end);
            self.next += 1;
        }
    }

    fn announce_all(&mut self, data: &[u8], end: usize) {
        for at in self.next..self.next + AHEAD {
            self.announce(data, at, end);
        }
    }

    /// The longest match at `at` among a row's positions whose bits are set, the latest one the lowest bit: longer than
    /// `len`, and the first one that is `enough`.
    #[inline(always)]
    fn longest(
        &self,
        mut equal: u32,
        row: usize,
        data: &[u8],
        at: usize,
        (len, enough): (usize, usize),
    ) -> Found {
        let head = u32::from(self.heads[row]);
        let positions = &self.positions[row].0;
        let here = self.count.of(at);
        let most = (at - self.state.start).min(self.reach);
        let mut found = Found { len, distance: 0 };
        let mut attempts = self.attempts;
        while equal != 0 && attempts > 0 && found.len < enough {
            let slot = (head + equal.trailing_zeros()) as usize % ROW;
            equal &= equal - 1;
            let distance = here.wrapping_sub(positions[slot]) as i32;
            if distance <= 0 {
                // It lies ahead.
                continue;
            }
            let distance = distance as usize;
            if distance > most {
                // So do those before.
                break;
            }
            attempts -= 1;
            // A longer match has these bytes in common.
            let check = at + found.len - 3;
            if check + 4 > data.len() {
                break;
            }
            if load4(data, check) == load4(data, check - distance) {
                let n = match_len(data, at, at - distance, data.len());
                if n > found.len {
                    found = Found { len: n, distance };
                }
            }
        }
        found
    }

    /// The longest match at `at`, longer than `len`, which is indexed, too.
    #[inline(always)]
    fn search(&mut self, data: &[u8], at: usize, end: usize, len: usize) -> Option<Found> {
        let hash = if at >= self.next {
            self.index(data, at, end);
            let hash = self.ahead[at % AHEAD];
            debug_assert_eq!(hash, self.hash(data, at));
            hash
        } else {
            // It was indexed for the frame before.
            self.hash(data, at)
        };
        let row = row_of(hash);
        let head = u32::from(self.heads[row]);
        let tags = &self.tags[row];
        let equal = equal_tags(&tags.hashed, hash as u8).rotate_right(head);
        let both = equal & equal_tags(&tags.behind, (hash >> 24) as u8).rotate_right(head);
        // Longer ones have both bytes behind the hashed ones.
        let short = (64 - self.hashed as usize) / 8 + 1;
        let mut found = self.longest(both, row, data, at, (len.max(short), usize::MAX));
        if found.distance == 0 && len < short {
            found = self.longest(equal & !both, row, data, at, (len, short));
        }
        if at >= self.next {
            self.put(at);
            self.announce(data, at + AHEAD, end);
            self.next = at + 1;
        }
        (found.distance > 0).then_some(found)
    }
}

/// A bit for each tag that is equal.
#[inline(always)]
fn equal_tags(tags: &[u8; ROW], tag: u8) -> u32 {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{
            _mm_cmpeq_epi8, _mm_loadu_si128, _mm_movemask_epi8, _mm_set1_epi8,
        };
        // SAFETY: SSE2 belongs to every x86-64; the tags are twice 16 bytes, which these loads want anywhere.
        unsafe {
            let wanted = _mm_set1_epi8(tag as i8);
            let from = tags.as_ptr().cast();
            let low = _mm_movemask_epi8(_mm_cmpeq_epi8(_mm_loadu_si128(from), wanted));
            let high = _mm_movemask_epi8(_mm_cmpeq_epi8(_mm_loadu_si128(from.add(1)), wanted));
            low as u32 | (high as u32) << 16
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    equal_tags_portable(tags, tag)
}

/// As above, without SIMD.
#[cfg(any(test, not(target_arch = "x86_64")))]
fn equal_tags_portable(tags: &[u8; ROW], tag: u8) -> u32 {
    tags.iter()
        .rev()
        .fold(0, |mask, &other| mask << 1 | u32::from(other == tag))
}

impl RowHash {
    /// Starts within a frame: it starts at `start`, the last match in it, which is not ours, has ended at `anchor`, and the
    /// search goes on at `at`. All in front of that is indexed.
    pub(super) fn resume(&mut self, data: &[u8], start: usize, anchor: usize, at: usize) {
        self.begin(start);
        if let Some(end) = data.len().checked_sub(END) {
            self.prepare(data, end);
            self.index_all(data, at.min(end), end);
        }
        // The first distances of a frame may lie in front of it here, and are the most likely ones of none.
        (self.state.anchor, self.state.at) = (anchor, at);
    }

    /// Makes hashes of what is indexed next.
    fn prepare(&mut self, data: &[u8], end: usize) {
        if self.shorten == 0 {
            // The same from one reset to the next.
            let rows = (data.len() - self.state.start)
                .ilog2()
                .saturating_sub(ROW.ilog2() - 1);
            self.shorten = 64 - 8 - rows.clamp(4, self.tags.len().ilog2());
        }
        if self.next <= end {
            self.announce_all(data, end);
        }
    }

    /// The search, compiled for the processors of the last ten years.
    ///
    /// # Safety
    /// The machine has the features.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "bmi1,bmi2,lzcnt")]
    unsafe fn find_bmi(&mut self, data: &[u8], until: usize, store: &mut SequenceStore) {
        self.find_any(data, until, store);
    }

    #[inline(always)]
    fn find_any(&mut self, data: &[u8], until: usize, store: &mut SequenceStore) {
        let Some(end) = data.len().checked_sub(END) else {
            return;
        };
        let stop = until.min(end);
        let reach = self.reach;
        let SearchState {
            start,
            mut at,
            mut anchor,
            distances: [mut near, mut far],
        } = self.state;
        self.prepare(data, end);
        // How much is equal at the distance of an earlier match; 0 if less than four bytes.
        let again = |at: usize, distance: usize| {
            if distance <= (at - start).min(reach) && load4(data, at) == load4(data, at - distance)
            {
                4 + match_len(data, at + 4, at + 4 - distance, data.len())
            } else {
                0
            }
        };
        while at < stop {
            let mut best = Match {
                start: at + 1,
                len: again(at + 1, near),
                distance: near,
                bits: 0,
            };
            if let Some(found) = self.search(data, at, end, best.len.max(3)) {
                best = Match {
                    start: at,
                    len: found.len,
                    distance: found.distance,
                    bits: bits(found.distance),
                };
            }
            if best.len < 4 {
                at += 1 + ((at - anchor) >> SKIP_LOG);
                continue;
            }
            'ahead: while self.depth > 0 && at < end {
                for (weight, repeat, spare) in
                    [(3, 1, 4), (4, 1, 7)].into_iter().take(self.depth as usize)
                {
                    if at >= end {
                        break 'ahead;
                    }
                    at += 1;
                    let len = again(at, near) as i64;
                    if len >= 4 && len * weight > best.len as i64 * weight - best.bits + repeat {
                        best = Match {
                            start: at,
                            len: len as usize,
                            distance: near,
                            bits: 0,
                        };
                    }
                    let least = best.len as i64 * 4 - best.bits + spare;
                    // Shorter ones would not gain that much at any distance.
                    let enough = ((least + bits(1)) / 4).max(3) as usize;
                    if let Some(Found { len, distance }) = self.search(data, at, end, enough)
                        && len as i64 * 4 - bits(distance) > least
                    {
                        best = Match {
                            start: at,
                            len,
                            distance,
                            bits: bits(distance),
                        };
                        continue 'ahead;
                    }
                }
                break;
            }
            let Match {
                start: mut from,
                mut len,
                distance,
                ..
            } = best;
            if distance != near {
                while from > anchor
                    && from - distance > start
                    && data[from - 1] == data[from - 1 - distance]
                {
                    from -= 1;
                    len += 1;
                }
                (near, far) = (distance, near);
            }
            // fits: a window has at most 12 MiB
            let seq = Sequence::new((from - anchor) as u32, len as u32, distance as u32);
            store.take(data, anchor, seq);
            at = from + len;
            anchor = at;
            while at < end {
                let len = again(at, far);
                if len == 0 {
                    break;
                }
                std::mem::swap(&mut near, &mut far);
                store.take(data, anchor, Sequence::new(0, len as u32, near as u32));
                at += len;
                anchor = at;
            }
        }
        self.state = SearchState {
            start,
            at: at.min(data.len()),
            anchor,
            distances: [near, far],
        };
    }
}

impl MatchFinder for RowHash {
    fn reset(&mut self) {
        // What was indexed before counts as further back than any match reaches.
        let full = self.count.reset(self.next, self.reach);
        self.next = 0;
        self.shorten = 0;
        if full {
            self.clear();
        }
    }

    fn begin(&mut self, start: usize) {
        if self.count.begin(start) {
            self.clear();
            self.next = start;
        }
        self.next = self.next.max(start);
        self.state = SearchState::new(start);
    }

    fn find(&mut self, data: &[u8], until: usize, store: &mut SequenceStore) {
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("bmi1")
            && std::arch::is_x86_feature_detected!("bmi2")
            && std::arch::is_x86_feature_detected!("lzcnt")
        {
            // SAFETY: the features were detected a line above.
            return unsafe { self.find_bmi(data, until, store) };
        }
        self.find_any(data, until, store);
    }

    fn position(&self) -> (usize, usize) {
        (self.state.anchor, self.state.at)
    }

    fn give(&mut self, n: usize) {
        self.state.anchor += n;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Noise, and copies of it at all distances.
    fn input() -> Vec<u8> {
        let mut seed = 5u64;
        let mut next = move |n: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) as usize % n
        };
        let mut out: Vec<u8> = (0..3000).map(|_| next(256) as u8).collect();
        while out.len() < 200_000 {
            let (from, n) = (next(out.len() - 700), next(600));
            out.extend_from_within(from..from + n);
            out.extend((0..next(20)).map(|_| next(256) as u8));
        }
        out
    }

    fn found(store: &SequenceStore) -> Vec<(u32, u32, u32)> {
        let seqs = store.seqs.iter();
        seqs.map(|seq| (seq.literals, seq.matched, seq.offset))
            .collect()
    }

    #[test]
    fn the_search_for_newer_processors_finds_the_same() {
        let data = input();
        let rows = || RowHash::for_cluster(65536, 1 << 17, 5, 2, true);
        let (mut a, mut b) = (rows(), rows());
        let (mut with, mut without) = (SequenceStore::default(), SequenceStore::default());
        for start in [0, 70_001] {
            for store in [&mut with, &mut without] {
                store.clear(1 << 17);
            }
            a.begin(start);
            b.begin(start);
            a.find(&data, data.len(), &mut with);
            b.find_any(&data, data.len(), &mut without);
            assert!(with.seqs.len() > 100);
            assert_eq!(found(&with), found(&without));
        }
    }

    #[test]
    fn a_search_in_the_middle_of_a_frame_reaches_back_to_its_start() {
        let data = input();
        let twice = [&data[..3000], &data[..3000]].concat();
        let mut rows = RowHash::for_cluster(65536, 1 << 17, 5, 2, true);
        let mut store = SequenceStore::default();
        store.clear(1 << 17);
        rows.resume(&twice, 0, 3000, 3000);
        rows.find(&twice, twice.len(), &mut store);
        assert_eq!(found(&store), [(0, 3000, 3000)]);
    }

    #[test]
    fn the_portable_comparison_of_tags_says_the_same() {
        let mut seed = 3u32;
        for _ in 0..2000 {
            let mut tags = [0; ROW];
            for tag in &mut tags {
                seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                *tag = (seed >> 28) as u8;
            }
            for tag in 0..17 {
                assert_eq!(equal_tags(&tags, tag), equal_tags_portable(&tags, tag));
            }
        }
    }
}
