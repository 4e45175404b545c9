//! Shape of the node tree of a file: from the index of a block to its slot.
//!
//! The slot is in the inode, or in a direct node under up to three levels of indirect nodes.
//!
//! ```text
//!  inode: 286 slots │ direct │ direct │ indirect │ indirect │ double │ triple
//! ```

use crate::disk::address::Nid;
use crate::disk::inode::{Content, INODE_NIDS, INODE_SLOTS, Inode};
use crate::disk::node::{DIRECT_SLOTS, INDIRECT_SLOTS};

const D: u64 = DIRECT_SLOTS as u64;
const I: u64 = INDIRECT_SLOTS as u64;
/// Level of each root in the inode.
pub(crate) const ROOT_LEVELS: [u8; INODE_NIDS] = [0, 0, 1, 1, 2, 3];

/// Number of blocks under a node of a level.
pub(crate) const fn span(level: u8) -> u64 {
    match level {
        0 => D,
        1 => D * I,
        2 => D * I * I,
        _ => D * I * I * I,
    }
}

/// First block index past the largest file.
pub(crate) const BLOCKS_MAX: u64 =
    INODE_SLOTS as u64 + 2 * span(0) + 2 * span(1) + span(2) + span(3);

/// Position of a block in the node tree of its file.
pub(crate) struct TreePosition {
    pub(crate) root: usize,
    pub(crate) level: u8,
    /// Index of the first block under the root.
    pub(crate) base: u64,
}

pub(crate) fn place(index: u64) -> Option<TreePosition> {
    let mut base = INODE_SLOTS as u64;
    for (root, level) in ROOT_LEVELS.into_iter().enumerate() {
        if index < base + span(level) {
            return Some(TreePosition { root, level, base });
        }
        base += span(level);
    }
    None
}

/// Number of direct nodes before the one that holds block `index`.
pub(crate) fn ordinal(index: u64) -> u32 {
    // Fits: BLOCKS_MAX / 338 is below 2^31.
    ((index - INODE_SLOTS as u64) / D) as u32
}

/// Returns the roots in an inode: number, level and first block.
pub(crate) fn roots(inode: &Inode) -> Vec<(Nid, u8, u64)> {
    let Content::Map(map) = &inode.content else {
        return Vec::new();
    };
    let mut base = INODE_SLOTS as u64;
    let mut out = Vec::new();
    for (nid, level) in map.nids.iter().zip(ROOT_LEVELS) {
        if *nid != Nid::NONE {
            out.push((*nid, level, base));
        }
        base += span(level);
    }
    out
}

/// Index of the first block under the root `root`.
pub(crate) fn root_base(root: usize) -> u64 {
    let before = ROOT_LEVELS[..root].iter().map(|level| span(*level));
    INODE_SLOTS as u64 + before.sum::<u64>()
}

/// Index of the first block under child `at` of a node.
pub(crate) fn child_base(base: u64, level: u8, at: usize) -> u64 {
    base + at as u64 * span(level - 1)
}

/// Ordinal of a node whose first block is `base`.
pub(crate) fn ordinal_at(base: u64) -> u32 {
    ordinal(base)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roots_follow_each_other_without_gaps() {
        assert!(matches!(
            place(286),
            Some(TreePosition {
                root: 0,
                level: 0,
                base: 286
            })
        ));
        assert!(matches!(
            place(286 + 338),
            Some(TreePosition {
                root: 1,
                level: 0,
                base: 624
            })
        ));
        assert!(matches!(
            place(286 + 2 * 338),
            Some(TreePosition {
                root: 2,
                level: 1,
                base: 962
            })
        ));
        assert!(matches!(
            place(BLOCKS_MAX - 1),
            Some(TreePosition {
                root: 5,
                level: 3,
                ..
            })
        ));
        assert!(place(BLOCKS_MAX).is_none());
        const { assert!((BLOCKS_MAX - 286) / 338 < 1 << 31) };
    }
}
