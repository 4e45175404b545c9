//! How `--memory` is shared out.
//!
//! An eighth is for ends of files that wait for the metadata, an eighth for blocks of the packed inode that wait for all
//! others, an eighth for what tells equal contents. The tree takes what it needs, and tables of
//! compressed files as they come. Half of the rest is for jobs in flight: the buffers that workers keep between jobs are
//! about as much again.

use super::options::Options;
use super::tree::Tree;

/// Per inode: its number in the order of the image and by position, its position, its serial number, where its data is.
const TABLES: u64 = 4 + 4 + 4 + 4 + 16;
/// Jobs in flight get at least so much. Unit: bytes.
pub(crate) const IN_FLIGHT_MIN: u64 = 16 << 20;

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build::source::{Content, Entry, Kind, Meta};
    use crate::build::tree::Whiteouts;

    fn with_memory(memory: u64) -> Options {
        Options {
            memory,
            ..Options::default()
        }
    }

    /// A tree of so many files.
    fn tree(files: usize) -> Tree {
        let mut tree = Tree::new(Whiteouts::Keep);
        for i in 0..files {
            let entry = Entry {
                path: format!("f{i}").into_bytes(),
                kind: Kind::File { size: 0 },
                meta: Meta {
                    mode: 0o644,
                    uid: 0,
                    gid: 0,
                    mtime: 0,
                    mtime_nsec: 0,
                },
                xattrs: Vec::new(),
                content: Content::None,
            };
            tree.add(entry).unwrap();
        }
        tree
    }

    #[test]
    fn a_build_that_fits_says_nothing() {
        let budget = Budget::new(&with_memory(256 << 20), &tree(1000));
        assert!(budget.needed <= 256 << 20 && budget.in_flight > 64 << 20);
        assert_eq!(budget.warning(&with_memory(256 << 20)), None);
    }

    /// To the byte: what is needed is enough, and one less is not.
    #[test]
    fn the_warning_begins_where_the_memory_ends() {
        let budget = Budget {
            in_flight: 16 << 20,
            tree: (5 << 20) + 1,
            needed: 40 << 20,
        };
        assert_eq!(budget.warning(&with_memory(40 << 20)), None);
        assert_eq!(
            budget.warning(&with_memory((40 << 20) - 1)).as_deref(),
            Some(
                "the tree alone takes 6 MiB: the build needs some 40 MiB of memory, more than the 39 MiB it was given"
            )
        );
    }

    /// With too little memory jobs still get the least they can work with, and that counts as needed.
    #[test]
    fn jobs_in_flight_have_a_least_share() {
        let options = with_memory(8 << 20);
        let budget = Budget::new(&options, &tree(10));
        assert_eq!(budget.in_flight, 16 << 20);
        assert_eq!(budget.needed, budget.tree + 3 * (1 << 20) + 32 * (1 << 20));
        assert!(budget.warning(&options).is_some());
    }

    #[test]
    fn a_larger_tree_leaves_less() {
        let options = with_memory(64 << 20);
        let (small, large) = (
            Budget::new(&options, &tree(10)),
            Budget::new(&options, &tree(20_000)),
        );
        assert!(large.tree > small.tree + 20_000 * 50);
        assert_eq!(
            small.in_flight - large.in_flight,
            (large.tree - small.tree) / 2
        );
    }
}
