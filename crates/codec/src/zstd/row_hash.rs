//! Row-based match finder of the middle levels: rows of earlier positions by hash, filtered by one more byte of the
//! hash, with lazy matching over one or two positions.
//!
//! ```text
//!  hash ──► row: | tag | tag | tag | ... 32    one SIMD comparison finds the entries with the wanted tag
//!                | tag | tag | tag | ...       second tags: the two bytes after the hashed ones
//!                | pos | pos | pos | ...       positions are visited only where tags match, latest first
//! ```
//!
//! If both tags match, the match is two bytes longer, as nearly all are that improve on the previous one. Entries
//! with one matching tag are visited only if there are none with both.
//!
//! Like the double hash, it indexes an input once, however many frames are made of it.

use super::block::Sequence;
use super::position::{PositionCounter, SearchState};
use super::sequences::{MatchFinder, SequenceStore};
use crate::bytes::{load4, load8, match_len, prefetch};
use crate::huge_pages::{HUGE, HugeTable, Zeroable};

/// Number of positions of a row.
const ROW: usize = 32;

/// Number of bytes at the end in which no match starts. Unit: bytes.
const END: usize = 8;

/// Number of literals after which the search step grows by one. Unit: log2 of bytes.
const SKIP_LOG: usize = 8;

/// Length of matches of which only the first and last positions are indexed, and how many. Unit: bytes.
const GAP: usize = 64;
const GAP_FIRST: usize = 32;
const GAP_LAST: usize = 16;

/// Distance ahead at which rows are prefetched. Unit: bytes.
const AHEAD: usize = 8;

/// Row of the index. Three cache lines.
#[repr(C, align(64))]
struct Row {
    /// Tags of the hashed bytes.
    hashed: [u8; ROW],
    /// Tags of the two bytes after them.
    tail: [u8; ROW],
    /// Positions, as counted by the index; 0 for none.
    positions: [u32; ROW],
}

// SAFETY: arrays of numbers.
unsafe impl Zeroable for Row {}

/// Match finder with its rows.
pub(super) struct RowHash {
    rows: HugeTable<Row>,
    /// Latest entry of each row.
    heads: Vec<u8>,
    count: PositionCounter,
    /// Next position to index.
    next: usize,
    /// Hashes of the next positions to index.
    ahead: [u32; AHEAD],
    state: SearchState,
    reach: usize,
    /// Number of entries with equal tags visited per search.
    attempts: u32,
    /// Number of positions of lazy matching.
    depth: u32,
    /// Number of hashed bytes, as a shift. Unit: bits.
    hashed: u32,
    /// Shift that reduces a hash to row and tag: small inputs have few rows, which stay in the cache. Unit: bits.
    shorten: u32,
}

/// Length and distance of the match that a search found.
#[derive(Clone, Copy)]
struct Found {
    len: usize,
    distance: usize,
}

/// Candidate of lazy matching.
#[derive(Clone, Copy)]
struct Match {
    start: usize,
    len: usize,
    distance: usize,
    /// Approximate bits that the distance takes; 0 for the latest one.
    bits: i64,
}

fn bits(distance: usize) -> i64 {
    i64::from((distance + 3).ilog2())
}

/// Returns the row of a hash.
#[inline(always)]
fn row_of(hash: u32) -> usize {
    (hash >> 8) as usize & 0xffff
}

impl RowHash {
    /// Creates a finder for outputs of `cluster` bytes; other arguments as in [`RowHash::new`].
    pub(super) fn for_cluster(
        cluster: usize,
        reach: usize,
        search: u32,
        depth: u32,
        four: bool,
    ) -> Option<Self> {
        // A quick search gains less from more positions than it loses by their cache misses.
        let most = (15 + search).min(20);
        Self::new((2 + cluster.ilog2()).min(most), reach, search, depth, four)
    }

    /// Creates a finder with 2^`log` positions for match distances of up to `reach`. A search visits 2^`search`
    /// positions, and lazy matching covers `depth` positions. `four`: matches are found by four bytes, or by five.
    /// `None` if memory is short.
    fn new(log: u32, reach: usize, search: u32, depth: u32, four: bool) -> Option<Self> {
        let rows = (1 << log) / ROW;
        Some(Self {
            // Rows that are never used complete a huge page.
            rows: HugeTable::zeros(rows.max(HUGE.div_ceil(size_of::<Row>())))?,
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
        })
    }

    /// Empties all rows of the index.
    fn clear(&mut self) {
        for row in self.rows.iter_mut() {
            row.positions.fill(0);
        }
    }

    /// Returns the tag of the following bytes, the row, and the tag of the hashed bytes as one number.
    #[inline(always)]
    fn hash(&self, data: &[u8], at: usize) -> u32 {
        let bytes = load8(data, at);
        let product = (bytes << self.hashed).wrapping_mul(0xCF1B_BCDC_B7A5_6463);
        let tail = u32::from((bytes >> (64 - self.hashed)) as u16).wrapping_mul(0x9E37_79B1);
        // fits: 2^23 rows and tags at most
        (product >> self.shorten) as u32 | tail >> 24 << 24
    }

    /// Hashes a position and prefetches its row.
    #[inline(always)]
    fn announce(&mut self, data: &[u8], at: usize, end: usize) {
        if at <= end {
            let hash = self.hash(data, at);
            self.ahead[at % AHEAD] = hash;
            let row = &self.rows[row_of(hash)];
            prefetch(row);
            prefetch(&row.positions[0]);
            prefetch(&row.positions[ROW / 2]);
        }
    }

    /// Indexes a position whose hash was computed.
    #[inline(always)]
    fn put(&mut self, at: usize) -> u32 {
        let hash = self.ahead[at % AHEAD];
        let row = row_of(hash);
        let head = self.heads[row].wrapping_sub(1) % ROW as u8;
        self.heads[row] = head;
        let row = &mut self.rows[row];
        row.hashed[usize::from(head)] = hash as u8;
        row.tail[usize::from(head)] = (hash >> 24) as u8;
        row.positions[usize::from(head)] = self.count.entry(at);
        hash
    }

    /// Indexes all positions before `to`, which is at most `end`.
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

    /// Returns the longest match at `at` among the row's positions whose bits are set; the lowest bit is the latest.
    /// It is longer than `len`, or the first of at least `enough` bytes.
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
        let positions = &self.rows[row].positions;
        let here = self.count.entry(at);
        let most = (at - self.state.start).min(self.reach);
        let mut found = Found { len, distance: 0 };
        let mut attempts = self.attempts;
        while equal != 0 && attempts > 0 && found.len < enough {
            let slot = (head + equal.trailing_zeros()) as usize % ROW;
            equal &= equal - 1;
            let distance = here.wrapping_sub(positions[slot]) as i32;
            if distance <= 0 {
                // The position lies ahead.
                continue;
            }
            let distance = distance as usize;
            if distance > most {
                // Older positions are out of reach, too.
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

    /// Indexes `at`, and returns its longest match that exceeds `len`.
    #[inline(always)]
    fn search(&mut self, data: &[u8], at: usize, end: usize, len: usize) -> Option<Found> {
        let hash = if at >= self.next {
            self.index(data, at, end);
            let hash = self.ahead[at % AHEAD];
            debug_assert_eq!(hash, self.hash(data, at));
            hash
        } else {
            // It was indexed for the previous frame.
            self.hash(data, at)
        };
        let row = row_of(hash);
        let head = u32::from(self.heads[row]);
        let tags = &self.rows[row];
        let equal = equal_tags(&tags.hashed, hash as u8).rotate_right(head);
        let both = equal & equal_tags(&tags.tail, (hash >> 24) as u8).rotate_right(head);
        // Longer matches have both bytes after the hashed ones in common.
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

/// Returns a bit for each tag that is equal.
#[inline(always)]
fn equal_tags(tags: &[u8; ROW], tag: u8) -> u32 {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{
            _mm_cmpeq_epi8, _mm_loadu_si128, _mm_movemask_epi8, _mm_set1_epi8,
        };
        // SAFETY: SSE2 is part of every x86-64 processor; the tags are twice 16 bytes, which these loads accept at
        // any alignment.
        unsafe {
            let pattern = _mm_set1_epi8(tag as i8);
            let from = tags.as_ptr().cast();
            let low = _mm_movemask_epi8(_mm_cmpeq_epi8(_mm_loadu_si128(from), pattern));
            let high = _mm_movemask_epi8(_mm_cmpeq_epi8(_mm_loadu_si128(from.add(1)), pattern));
            low as u32 | (high as u32) << 16
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    equal_tags_portable(tags, tag)
}

/// Portable version of [`equal_tags`].
#[cfg(any(test, not(target_arch = "x86_64")))]
fn equal_tags_portable(tags: &[u8; ROW], tag: u8) -> u32 {
    tags.iter()
        .rev()
        .fold(0, |mask, &other| mask << 1 | u32::from(other == tag))
}

impl RowHash {
    /// Continues within a frame that starts at `start`. The last match, of another finder, has ended at `anchor`, and
    /// the search continues at `at`. All earlier positions are indexed.
    pub(super) fn resume(&mut self, data: &[u8], start: usize, anchor: usize, at: usize) {
        self.begin(start);
        if let Some(end) = data.len().checked_sub(END) {
            self.prepare(data, end);
            self.index_all(data, at.min(end), end);
        }
        // The initial distances of a frame may reach before it here, and are the least likely ones.
        (self.state.anchor, self.state.at) = (anchor, at);
    }

    /// Computes hashes of the positions to be indexed next.
    fn prepare(&mut self, data: &[u8], end: usize) {
        if self.shorten == 0 {
            // Constant from one reset to the next.
            let rows = (data.len() - self.state.start)
                .ilog2()
                .saturating_sub(ROW.ilog2() - 1);
            self.shorten = 64 - 8 - rows.clamp(4, self.heads.len().ilog2());
        }
        if self.next <= end {
            self.announce_all(data, end);
        }
    }

    /// Runs [`Self::find_any`] compiled for BMI instructions.
    ///
    /// # Safety
    /// The machine has these features.
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
        // Returns the match length at the distance of an earlier match; 0 if less than four bytes.
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
                    // Shorter matches would not gain that much at any distance.
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
        // Positions of earlier inputs are further back than any match reaches.
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
    fn accelerated_search_finds_the_same_matches() {
        let data = input();
        let rows = || RowHash::for_cluster(65536, 1 << 17, 5, 2, true).unwrap();
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
    fn resumed_search_finds_matches_from_the_start_of_the_frame() {
        let data = input();
        let twice = [&data[..3000], &data[..3000]].concat();
        let mut rows = RowHash::for_cluster(65536, 1 << 17, 5, 2, true).unwrap();
        let mut store = SequenceStore::default();
        store.clear(1 << 17);
        rows.resume(&twice, 0, 3000, 3000);
        rows.find(&twice, twice.len(), &mut store);
        assert_eq!(found(&store), [(0, 3000, 3000)]);
    }

    #[test]
    fn portable_tag_comparison_equals_the_accelerated_one() {
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
