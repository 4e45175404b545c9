//! Maps of used bytes. Their memory grows only with the used ranges.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::hash::Hash;

/// Pages of `N` values by key, allocated on first use. The last page is found without a lookup, because
/// neighbours are mostly marked together.
struct Pages<K, T, const N: usize> {
    places: HashMap<K, u32>,
    pages: Vec<Box<[T; N]>>,
    /// Page that was used last.
    last: Cell<Option<(K, u32)>>,
}

impl<K, T, const N: usize> Default for Pages<K, T, N> {
    fn default() -> Self {
        Self {
            places: HashMap::new(),
            pages: Vec::new(),
            last: Cell::new(None),
        }
    }
}

impl<K: Copy + Eq + Hash, T: Copy + Default, const N: usize> Pages<K, T, N> {
    fn place(&self, key: K) -> Option<usize> {
        match self.last.get() {
            Some((last, at)) if last == key => Some(at as usize),
            _ => {
                let at = *self.places.get(&key)?;
                self.last.set(Some((key, at)));
                Some(at as usize)
            }
        }
    }

    fn get(&self, key: K) -> Option<&[T; N]> {
        // In bounds: places are those of pages.
        self.place(key).map(|at| &*self.pages[at])
    }

    fn make(&mut self, key: K) -> &mut [T; N] {
        let at = self.place(key).unwrap_or_else(|| {
            let at = self.pages.len();
            self.pages.push(Box::new([T::default(); N]));
            // Fits: 2^32 pages would not fit in memory.
            self.places.insert(key, at as u32);
            self.last.set(Some((key, at as u32)));
            at
        });
        &mut self.pages[at]
    }

    fn iter(&self) -> impl Iterator<Item = (K, &[T; N])> {
        self.places
            .iter()
            .map(|(key, at)| (*key, &*self.pages[*at as usize]))
    }
}

/// Number of blocks in one page of the data map.
const PAGE: usize = 512;

/// Use of a data block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// The block is not used.
    Free,
    /// Raw data, which files may share in any way.
    Raw,
    /// Middle of a cluster.
    Inside,
    /// Start of a cluster of which only prefixes were found.
    Partial,
    /// Start of a cluster with this decoded length, taken from the first extent that covers the whole
    /// cluster.
    Whole(u32),
}

impl Owner {
    fn pack(self) -> u32 {
        match self {
            Self::Free => 0,
            Self::Raw => 1 << 30,
            Self::Inside => 2 << 30,
            Self::Partial => 3 << 30,
            // Fits: decoded lengths are at most 12 MiB, and none is 0.
            Self::Whole(len) => len,
        }
    }

    fn unpack(word: u32) -> Self {
        match word {
            0 => Self::Free,
            0x4000_0000 => Self::Raw,
            0x8000_0000 => Self::Inside,
            0xC000_0000 => Self::Partial,
            len => Self::Whole(len),
        }
    }
}

/// Uses of data blocks, four bytes each.
#[derive(Default)]
pub(crate) struct DataMap {
    pages: Pages<(u16, u64), u32, PAGE>,
    /// Clusters that do not start at a block, as encoded extents allow.
    odd: HashMap<u64, Owner>,
}

impl DataMap {
    pub(crate) fn get(&self, store: u16, block: u64) -> Owner {
        let page = self.pages.get((store, block / PAGE as u64));
        // Fits: below PAGE.
        page.map_or(Owner::Free, |p| {
            Owner::unpack(p[(block % PAGE as u64) as usize])
        })
    }

    pub(crate) fn set(&mut self, store: u16, block: u64, owner: Owner) {
        let page = self.pages.make((store, block / PAGE as u64));
        page[(block % PAGE as u64) as usize] = owner.pack();
    }

    pub(crate) fn odd(&self, pos: u64) -> Owner {
        self.odd.get(&pos).copied().unwrap_or(Owner::Free)
    }

    pub(crate) fn set_odd(&mut self, pos: u64, owner: Owner) {
        self.odd.insert(pos, owner);
    }
}

/// Unit of inode positions in bytes.
const SLOT: u64 = 32;
/// Bytes of a space that one word of the slot map covers.
const SPAN: u64 = 128 * SLOT;
/// Number of words in one page of the slot map.
const SPANS: usize = 8;

/// Slots of 32 bytes that inodes and their inline metadata use, and slots at which inodes start.
#[derive(Default)]
pub(crate) struct SlotMap {
    /// Used slots, and slots at which inodes start.
    pages: Pages<u64, [u128; 2], SPANS>,
    /// Units of [`OTHER`] bytes that hold shared attributes.
    other: HashSet<u64>,
}

/// The smallest block size in bytes. A larger unit would include neighbours.
const OTHER: u64 = 512;

impl SlotMap {
    fn span(&mut self, span: u64) -> &mut [u128; 2] {
        let page = self.pages.make(span / SPANS as u64);
        // Fits: below SPANS.
        &mut page[(span % SPANS as u64) as usize]
    }

    /// Marks the start of an inode at `pos`. Returns true if it is new.
    pub(crate) fn start(&mut self, pos: u64) -> bool {
        let bit = 1u128 << (pos % SPAN / SLOT);
        let [_, word] = self.span(pos / SPAN);
        let new = *word & bit == 0;
        *word |= bit;
        new
    }

    /// Marks `[start, end)` in whole slots. Returns the first slot that was used before.
    pub(crate) fn take(&mut self, start: u64, end: u64) -> Option<u64> {
        let mut found = None;
        let mut slot = start / SLOT;
        let last = end.div_ceil(SLOT);
        while slot < last {
            let (span, from) = (slot / 128, slot % 128);
            let n = (last - slot).min(128 - from);
            let ones = if n == 128 { u128::MAX } else { (1 << n) - 1 };
            let bits = ones << from;
            let [word, _] = self.span(span);
            let both = *word & bits;
            if both != 0 && found.is_none() {
                found = Some((span * 128 + u64::from(both.trailing_zeros())) * SLOT);
            }
            *word |= bits;
            slot += n;
        }
        found
    }

    /// Marks `[start, end)` as metadata that any number of inodes may share.
    pub(crate) fn share(&mut self, start: u64, end: u64) {
        self.other.extend(start / OTHER..end.div_ceil(OTHER));
    }

    /// Iterates over ranges of metadata, each at least a slot long.
    pub(crate) fn spans(&self) -> impl Iterator<Item = (u64, u64)> {
        let other = self.other.iter().map(|n| (n * OTHER, (n + 1) * OTHER));
        let words = self.pages.iter().flat_map(|(page, words)| {
            let first = page * SPANS as u64;
            (first..).zip(words.iter().map(|[taken, _]| *taken))
        });
        let taken = words.flat_map(|(span, bits)| {
            let base = span * SPAN;
            let mut at = 0;
            std::iter::from_fn(move || {
                while at < 128 {
                    at += (bits.checked_shr(at)?).trailing_zeros();
                    let ones = (bits.checked_shr(at)?).trailing_ones();
                    let from = at;
                    at += ones;
                    if ones > 0 {
                        return Some((base + u64::from(from) * SLOT, base + u64::from(at) * SLOT));
                    }
                }
                None
            })
        });
        taken.chain(other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_taken_once() {
        let mut map = SlotMap::default();
        assert_eq!(map.take(64, 100), None);
        assert_eq!(map.take(128, 10_000), None);
        assert_eq!(map.take(9_000, 9_001), Some(8_992));
        assert_eq!(map.take(32, 64), None);
        assert!(map.start(64) && !map.start(64) && map.start(96));
        map.share(20_000, 20_500);
        let mut spans: Vec<_> = map.spans().collect();
        spans.sort();
        assert_eq!(
            spans,
            [
                (32, 4096),
                (4096, 8192),
                (8192, 10_016),
                (19_968, 20_480),
                (20_480, 20_992)
            ]
        );
    }

    #[test]
    fn owners_survive_packing() {
        let mut map = DataMap::default();
        for (i, owner) in [
            Owner::Raw,
            Owner::Inside,
            Owner::Partial,
            Owner::Whole(1),
            Owner::Whole(12 << 20),
        ]
        .into_iter()
        .enumerate()
        {
            map.set(1, i as u64 * 700, owner);
            assert_eq!(map.get(1, i as u64 * 700), owner);
            assert_eq!(map.get(0, i as u64 * 700), Owner::Free);
        }
    }
}
