//! Cuts that follow content: an insertion changes the ranges around it and no others.

use std::fmt;
use std::sync::Arc;

/// Sizes of ranges. Unit: bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CutSizes {
    pub(crate) min: usize,
    /// Size from which cuts are more likely than before, about the most frequent one. A power of two.
    pub(crate) usual: usize,
    pub(crate) max: usize,
}

/// Sizes of the ranges of files.
pub(crate) const DATA: CutSizes = CutSizes {
    min: 128 << 10,
    usual: 512 << 10,
    max: 2 << 20,
};

/// Steps of the usual size by which cuts are less likely before it and more likely after it, in powers of two.
const SLOPE: u32 = 2;

/// Places of cuts, which follow content and, in an encrypted store, a secret: lengths of ranges would tell what is stored.
#[derive(Clone)]
pub(crate) struct Cuts {
    /// Random numbers of all byte values. They are part of the format: other numbers cut elsewhere, and share nothing.
    gear: Arc<[u64; 256]>,
}

impl fmt::Debug for Cuts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Cuts")
    }
}

impl Cuts {
    pub(crate) fn new(secret: Option<&[u8; 32]>) -> Self {
        let mut gear = [0; 256];
        let mut bytes = [0; 2048];
        let mut hasher = blake3::Hasher::new_derive_key("tuff backup store 1, cuts");
        hasher.update(secret.map_or(&[], |secret| &secret[..]));
        hasher.finalize_xof().fill(&mut bytes);
        for (number, bytes) in gear.iter_mut().zip(bytes.as_chunks().0) {
            *number = u64::from_le_bytes(*bytes);
        }
        Self {
            gear: Arc::new(gear),
        }
    }

    /// Returns the length of the first range of `bytes`, which are the next ones of a file, at least `max` of them unless it ends
    /// there.
    pub(crate) fn first_len(&self, bytes: &[u8], sizes: CutSizes) -> usize {
        let end = bytes.len().min(sizes.max);
        if end <= sizes.min {
            return end;
        }
        let gear = &*self.gear;
        let usual = sizes.usual.min(end);
        let bits = sizes.usual.ilog2();
        // The upper bits depend on the last 64 bytes.
        let mask = |bits: u32| u64::MAX << (64 - bits);
        let (rare, often) = (mask(bits + SLOPE), mask(bits - SLOPE));
        let mut hash = 0u64;
        for byte in &bytes[sizes.min - 64..sizes.min] {
            hash = (hash << 1).wrapping_add(gear[usize::from(*byte)]);
        }
        for (range, mask) in [(sizes.min..usual, rare), (usual.max(sizes.min)..end, often)] {
            for (at, byte) in range.clone().zip(&bytes[range]) {
                hash = (hash << 1).wrapping_add(gear[usize::from(*byte)]);
                if hash & mask == 0 {
                    return at + 1;
                }
            }
        }
        end
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use tuff_testkit::content::noise;

    fn ranges(mut bytes: &[u8]) -> Vec<&[u8]> {
        let cuts = Cuts::new(None);
        let mut ranges = Vec::new();
        while !bytes.is_empty() {
            let (range, rest) = bytes.split_at(cuts.first_len(bytes, DATA));
            ranges.push(range);
            bytes = rest;
        }
        ranges
    }

    #[test]
    fn an_insertion_changes_the_ranges_around_it() {
        let bytes = noise(40 << 20, 1);
        let before = ranges(&bytes);
        assert!(
            before[..before.len() - 1]
                .iter()
                .all(|r| (DATA.min..=DATA.max).contains(&r.len()))
        );
        assert!((40..120).contains(&before.len()), "{}", before.len());
        let mut edited = bytes.clone();
        edited.splice(20_000_000..20_000_000, *b"inserted");
        let known: HashSet<&[u8]> = before.iter().copied().collect();
        let new: usize = ranges(&edited)
            .iter()
            .filter(|r| !known.contains(*r))
            .map(|r| r.len())
            .sum();
        assert!(new > 0 && new <= 3 * DATA.max, "{new}");
    }

    #[test]
    fn a_secret_cuts_elsewhere() {
        let bytes = noise(8 << 20, 1);
        let first = |secret| Cuts::new(secret).first_len(&bytes, DATA);
        let lens = [first(None), first(Some(&[1; 32])), first(Some(&[2; 32]))];
        assert_eq!(HashSet::from(lens).len(), 3, "{lens:?}");
    }
}
