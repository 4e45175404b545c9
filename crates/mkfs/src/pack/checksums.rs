//! Checksums of the contents that were read, for verification of the finished image.

use crate::tree::InodeId;
use hashbrown::HashMap;
use xxhash_rust::xxh3::Xxh3;

/// Returns a new checksum. It detects errors, not forgeries.
pub(crate) fn sum() -> Xxh3 {
    Xxh3::new()
}

/// Checksums of contents, by part.
#[derive(Default)]
pub(crate) struct ContentSums {
    /// Checksum of the first part of each file, by inode.
    first: Vec<u64>,
    /// Lengths and checksums of further parts.
    more: HashMap<InodeId, Vec<(u64, u64)>>,
}

impl ContentSums {
    /// Adds the checksum of the next part of a file, which has `len` bytes.
    pub(crate) fn add(&mut self, file: InodeId, first: bool, len: usize, sum: u64) {
        let i = file as usize;
        if !first {
            self.more.entry(file).or_default().push((len as u64, sum));
            return;
        }
        if i >= self.first.len() {
            self.first.resize(i + 1, 0);
        }
        self.first[i] = sum;
    }

    /// Returns lengths and checksums of the parts of a file of `size` bytes, not 0.
    pub(crate) fn ranges(&self, file: InodeId, size: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        let more = self.more.get(&file).map_or(&[][..], |m| m);
        let rest: u64 = more.iter().map(|(len, _)| len).sum();
        let first = self.first.get(file as usize).copied();
        (first.map(|sum| (size - rest, sum)).into_iter()).chain(more.iter().copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_come_back_in_order() {
        let mut sums = ContentSums::default();
        sums.add(7, true, 100, 1);
        sums.add(3, true, 5, 9);
        sums.add(7, false, 50, 2);
        sums.add(7, false, 1, 3);
        assert!(sums.ranges(7, 151).eq([(100, 1), (50, 2), (1, 3)]));
        assert!(sums.ranges(3, 5).eq([(5, 9)]));
    }
}
