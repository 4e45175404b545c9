//! How `--memory` is shared out.
//!
//! An eighth is for ends of files that wait for the metadata, an eighth for blocks of the packed inode that wait for all
//! others, an eighth for what tells equal contents. The tree takes what it needs, and tables of
//! compressed files as they come. Half of the rest is for jobs in flight: the buffers that workers keep between jobs are
//! about as much again.
//!
//! Who says nothing of memory gets 256 MiB shared out so, but each worker has a job of the largest size: the shares decide
//! what is found, and so what the image is, but not how many jobs are in flight.

use super::options::Options;
use super::pack;
use super::pack::pool::IN_FLIGHT_MIN;
use super::tree::Tree;

/// Per inode: its number in the order of the image and by position, its position, its serial number, where its data is.
const TABLES: u64 = 4 + 4 + 4 + 4 + 16;

/// What is shared out unless something else is said. Unit: bytes.
const USUAL: u64 = 256 << 20;

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
    /// The shares beside a tree, for so many workers.
    pub(crate) fn new(options: &Options, tree: &Tree, threads: usize) -> Self {
        let tree = tree.footprint() + TABLES * tree.len() as u64;
        let fixed = tree + eighth(options) * 3;
        let share = (memory(options).saturating_sub(fixed) / 2).max(IN_FLIGHT_MIN);
        Self {
            in_flight: at_least(options, threads, share),
            tree,
            needed: fixed + 2 * share,
        }
    }

    /// For jobs in flight until a tree is known. Unit: bytes.
    pub(crate) fn first(options: &Options, threads: usize) -> u64 {
        at_least(options, threads, memory(options) / 4)
    }

    /// A sentence if the memory is not enough.
    pub(crate) fn warning(&self, options: &Options) -> Option<String> {
        const MIB: u64 = 1 << 20;
        (self.needed > memory(options)).then(|| {
            format!(
                "the tree alone takes {} MiB: the build needs some {} MiB of memory, more than the {} MiB it was given",
                self.tree.div_ceil(MIB),
                self.needed.div_ceil(MIB),
                memory(options) / MIB,
            )
        })
    }
}

/// What is shared out. Unit: bytes.
pub(crate) fn memory(options: &Options) -> u64 {
    options.resources.memory.unwrap_or(USUAL)
}

/// One of the fixed shares. Unit: bytes.
pub(crate) fn eighth(options: &Options) -> u64 {
    memory(options) / 8
}

/// `share`, or what every worker and one result that waits need, unless the memory is given. Unit: bytes.
fn at_least(options: &Options, threads: usize, share: u64) -> u64 {
    match options.resources.memory {
        Some(_) => share,
        None => share.max((threads as u64 + 1) * pack::job_cost(largest_segment(options))),
    }
}

/// What the largest clusters of an image are encoded in. Unit: bytes.
fn largest_segment(options: &Options) -> u64 {
    let packed = [options.layout.fragment_cluster, options.similar_cluster()];
    let rules = options
        .compression
        .rules
        .iter()
        .filter_map(|rule| rule.cluster);
    let clusters = packed
        .into_iter()
        .chain(rules)
        .chain([options.compression.cluster]);
    clusters.map(pack::segment_for).max().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{CompressionOptions, ResourceOptions};
    use crate::source::{Content, Entry, Kind, Meta};
    use crate::tree::Whiteouts;

    fn with_memory(memory: u64) -> Options {
        Options {
            resources: ResourceOptions {
                memory: Some(memory),
                ..ResourceOptions::default()
            },
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
        let budget = Budget::new(&with_memory(256 << 20), &tree(1000), 2);
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
        let budget = Budget::new(&options, &tree(10), 2);
        assert_eq!(budget.in_flight, 16 << 20);
        assert_eq!(budget.needed, budget.tree + 3 * (1 << 20) + 32 * (1 << 20));
        assert!(budget.warning(&options).is_some());
    }

    #[test]
    fn every_worker_has_a_large_job_unless_the_memory_is_given() {
        let mut options = Options {
            compression: CompressionOptions {
                cluster: 1 << 20,
                ..CompressionOptions::default()
            },
            ..Options::default()
        };
        let in_flight =
            |options: &Options, threads| Budget::new(options, &tree(10), threads).in_flight;
        assert!(in_flight(&options, 2) >= 192 << 20);
        assert!(in_flight(&options, 16) >= 1088 << 20);
        assert_eq!(Budget::new(&options, &tree(10), 16).warning(&options), None);
        options.resources.memory = Some(256 << 20);
        assert_eq!(in_flight(&options, 16), in_flight(&options, 2));
        assert!(in_flight(&options, 16) < 128 << 20);
    }

    #[test]
    fn a_larger_tree_leaves_less() {
        let options = with_memory(64 << 20);
        let (small, large) = (
            Budget::new(&options, &tree(10), 2),
            Budget::new(&options, &tree(20_000), 2),
        );
        assert!(large.tree > small.tree + 20_000 * 50);
        assert_eq!(
            small.in_flight - large.in_flight,
            (large.tree - small.tree) / 2
        );
    }
}
