//! Positions of the levels of a hash tree.

use crate::DIGEST_LEN;
use crate::header::{HEADER_LEN, Header};
use std::ops::Range;

/// Level of the tree: consecutive hash blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Level {
    /// Position in the store that holds the tree. Unit: bytes.
    pub(crate) at: u64,
    /// Number of hash blocks.
    pub(crate) blocks: u64,
}

/// Positions of all levels of a tree.
#[derive(Clone, Debug)]
pub(crate) struct TreeLayout {
    /// Number of digests in a hash block.
    pub(crate) per: u64,
    /// Levels from the one over the data up to the single top block. Empty for a single data block.
    pub(crate) levels: Vec<Level>,
    /// End of the last level on disk. Unit: bytes.
    pub(crate) end: u64,
}

impl TreeLayout {
    /// Layout of the tree whose header is at `hash_offset`. The tree starts in the next hash block, top level
    /// first.
    pub(crate) fn new(header: &Header, hash_offset: u64) -> Self {
        let size = u64::from(header.hash_block);
        let per = size / DIGEST_LEN as u64;
        let mut counts = Vec::new();
        let mut blocks = header.data_blocks;
        while blocks > 1 {
            blocks = blocks.div_ceil(per);
            counts.push(blocks);
        }
        let mut end = (hash_offset.saturating_add(HEADER_LEN as u64)).div_ceil(size) * size;
        let mut levels = Vec::new();
        for blocks in counts.into_iter().rev() {
            levels.push(Level { at: end, blocks });
            end = end.saturating_add(blocks.saturating_mul(size));
        }
        levels.reverse();
        Self { per, levels, end }
    }

    /// Position of the first hash block, after the header. Unit: bytes.
    pub(crate) fn body(&self) -> u64 {
        self.levels.last().map_or(self.end, |top| top.at)
    }

    /// Positions of the hash blocks that hold digests of data blocks, or of such hash blocks: from the top level down. Unit:
    /// bytes.
    pub(crate) fn path(&self, blocks: Range<u64>, size: u64) -> Vec<Range<u64>> {
        let mut path = Vec::new();
        let (mut first, mut end) = (blocks.start, blocks.end);
        for level in &self.levels {
            first = (first / self.per).min(level.blocks);
            end = end.div_ceil(self.per).min(level.blocks);
            path.push(level.at + first * size..level.at + end * size);
        }
        path.reverse();
        path
    }

    /// Level and number of the hash block at byte `at`.
    pub(crate) fn find(&self, at: u64, size: u64) -> (usize, u64) {
        // Positions descend from level 0 up.
        let level = self.levels.iter().position(|level| level.at <= at);
        let level = level.unwrap_or(0);
        (level, (at - self.levels[level].at) / size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_top_level_comes_first() {
        let shape = |blocks: u64| {
            let header = Header::new(blocks * 4096, 4096, Vec::new(), [0; 16]).unwrap();
            let shape = TreeLayout::new(&header, 40960);
            let levels: Vec<_> = shape.levels.iter().map(|l| (l.at, l.blocks)).collect();
            (levels, shape.end)
        };
        let block = |n: u64| 40960 + 4096 * n;
        assert_eq!(shape(1), (vec![], block(1)));
        assert_eq!(shape(2), (vec![(block(1), 1)], block(2)));
        assert_eq!(shape(128), (vec![(block(1), 1)], block(2)));
        assert_eq!(shape(129), (vec![(block(2), 2), (block(1), 1)], block(4)));
        let three = vec![(block(4), 129), (block(2), 2), (block(1), 1)];
        assert_eq!(shape(128 * 128 + 1), (three, block(133)));
    }

    #[test]
    fn a_path_has_a_run_of_blocks_of_each_level() {
        let header = Header::new((128 * 128 + 1) * 4096, 4096, Vec::new(), [0; 16]).unwrap();
        let shape = TreeLayout::new(&header, 40960);
        let block = |n: u64| 40960 + 4096 * n;
        let top = block(1)..block(2);
        let first = vec![top.clone(), block(2)..block(3), block(4)..block(6)];
        assert_eq!(shape.path(127..129, 4096), first);
        let last = vec![top, block(3)..block(4), block(132)..block(133)];
        assert_eq!(shape.path(128 * 128..u64::MAX, 4096), last);
    }
}
