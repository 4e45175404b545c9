//! Records of promised space.

use crate::disk::address::Nid;
use crate::quota::Owners;
use std::collections::HashMap;

/// Promises of a volume by inode.
#[derive(Default)]
pub(crate) struct Promises {
    pub(crate) inodes: HashMap<Nid, Promise>,
    /// Promised blocks of all inodes.
    pub(crate) blocks: u64,
    /// Part of `blocks` whose space the files have reserved.
    pub(crate) reserved: u64,
    /// Blocks kept for pages that were collected before the mount began to ask.
    pub(crate) unasked: u64,
}

/// Promise to an inode.
pub(crate) struct Promise {
    pub(crate) owners: Owners,
    /// Blocks promised before the settlement began that is under way.
    pub(crate) old: u64,
    /// Blocks promised since.
    pub(crate) new: u64,
    /// Blocks charged to the owners: those of the promise that fill holes.
    pub(crate) charged: u64,
    /// Blocks that the file has reserved, at most all of the promise.
    pub(crate) reserved: u64,
}

impl Promises {
    /// Blocks that only promised writes may take.
    pub(crate) fn blocks(&self) -> u64 {
        self.blocks + self.unasked
    }
}
