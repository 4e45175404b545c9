//! Division of the memory budget (`--memory`).
//!
//! | share | use |
//! |---|---|
//! | 1/8 | tails of files that wait for the metadata |
//! | 1/8 | blocks of the packed inode that wait for all others |
//! | 1/8 | keys of equal contents |
//! | as needed | the tree, tables of compressed files |
//! | half of the rest | jobs in flight; the buffers that workers keep between jobs take about as much |
//!
//! The default is 256 MiB, except that each worker has a job of the largest size. The fixed shares influence which
//! duplicates are found, and so the image; the number of jobs in flight does not.

use super::options::Options;
use super::pack;
use super::pack::pool::IN_FLIGHT_MIN;
use super::tree::Tree;

/// Per inode: number in the order of the image and by position, position, serial number, place of the data.
const TABLES: u64 = 4 + 4 + 4 + 4 + 16;

/// Default memory in bytes.
const USUAL: u64 = 256 << 20;

/// Shares of the memory in bytes.
pub(crate) struct Budget {
    /// Share of jobs in flight.
    pub(crate) in_flight: u64,
    /// The tree and its tables.
    pub(crate) tree: u64,
    /// Least memory that is enough for this tree.
    pub(crate) needed: u64,
}

impl Budget {
    /// Divides the memory beside a tree, for `threads` workers.
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

    /// Returns the share in bytes of jobs in flight before the tree is known.
    pub(crate) fn first(options: &Options, threads: usize) -> u64 {
        at_least(options, threads, memory(options) / 4)
    }

    /// Returns a warning if the memory is not enough.
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

/// Returns the memory in bytes that is divided.
pub(crate) fn memory(options: &Options) -> u64 {
    options.resources.memory.unwrap_or(USUAL)
}

/// Returns a fixed share in bytes.
pub(crate) fn eighth(options: &Options) -> u64 {
    memory(options) / 8
}

/// Returns `share`, or the bytes that every worker and one waiting result need, unless the memory is given.
fn at_least(options: &Options, threads: usize, share: u64) -> u64 {
    match options.resources.memory {
        Some(_) => share,
        None => share.max((threads as u64 + 1) * pack::job_cost(largest_segment(options))),
    }
}

/// Returns the bytes of input that the largest clusters of an image are encoded from.
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

    /// Returns a tree of `files` files.
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

    /// Exact to the byte: the needed memory is enough, one byte less is not.
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

    /// With too little memory jobs still get their minimum, which counts as needed.
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
