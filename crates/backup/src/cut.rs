//! Cuts that follow content: an insertion changes the ranges around it and no others.

use std::sync::LazyLock;

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

/// Random numbers of all byte values. They are part of the format: other numbers would cut elsewhere, and share nothing.
static GEAR: LazyLock<[u64; 256]> = LazyLock::new(|| {
    let mut table = [0; 256];
    let mut bytes = [0; 2048];
    let mut output = blake3::Hasher::new_derive_key("tuff backup store 1, cuts").finalize_xof();
    output.fill(&mut bytes);
    for (number, bytes) in table.iter_mut().zip(bytes.as_chunks().0) {
        *number = u64::from_le_bytes(*bytes);
    }
    table
});

/// Returns the length of the first range of `bytes`, which are the next ones of a file, at least `max` of them unless it ends
/// there.
pub(crate) fn first_len(bytes: &[u8], sizes: CutSizes) -> usize {
    let end = bytes.len().min(sizes.max);
    if end <= sizes.min {
        return end;
    }
    let gear = &*GEAR;
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use tuff_testkit::content::noise;

    fn ranges(mut bytes: &[u8]) -> Vec<&[u8]> {
        let mut ranges = Vec::new();
        while !bytes.is_empty() {
            let (range, rest) = bytes.split_at(first_len(bytes, DATA));
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
}
