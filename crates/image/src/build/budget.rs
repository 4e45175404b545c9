//! How `--memory` is shared out.
//!
//! An eighth is for ends of files that wait for the metadata, an eighth for blocks of the packed inode that wait for all
//! others, an eighth for what tells equal contents. The tree takes what it needs. Half of the rest is for jobs in flight: the buffers that workers keep between jobs are about as much again.

use super::options::Options;
use super::tree::Tree;

/// Per inode: its number in the order of the image and by position, its position, its serial number, where its data is.
const TABLES: u64 = 4 + 4 + 4 + 4 + 16;
/// Jobs in flight get at least so much. Unit: bytes.
const IN_FLIGHT_MIN: u64 = 16 << 20;

/// Shares of the memory. Unit: bytes.
pub(crate) struct Budget {
    /// For jobs in flight.
    pub(crate) in_flight: u64,
    /// What the tree and the tables over it take.
    pub(crate) tree: u64,
    /// What it comes to if the tree leaves too little.
    pub(crate) needed: u64,
}

impl Budget {
    /// The shares beside a tree.
    pub(crate) fn new(options: &Options, tree: &Tree) -> Self {
        let tree = tree.footprint() + TABLES * tree.len() as u64;
        let fixed = tree + eighth(options) * 3;
        let in_flight = (options.memory.saturating_sub(fixed) / 2).max(IN_FLIGHT_MIN);
        Self {
            in_flight,
            tree,
            needed: fixed + 2 * in_flight,
        }
    }

    /// A sentence if the memory is not enough.
    pub(crate) fn warning(&self, options: &Options) -> Option<String> {
        const MIB: u64 = 1 << 20;
        (self.needed > options.memory).then(|| {
            format!(
                "the tree alone takes {} MiB: the build needs some {} MiB of memory, more than the {} MiB it was given",
                self.tree.div_ceil(MIB),
                self.needed.div_ceil(MIB),
                options.memory / MIB,
            )
        })
    }
}

/// One of the fixed shares. Unit: bytes.
pub(crate) fn eighth(options: &Options) -> u64 {
    options.memory / 8
}
