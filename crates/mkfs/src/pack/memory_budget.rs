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
//! duplicates are found, and so the image; the number of jobs in flight does not, nor does the number of workers. A
//! memory limit of the control group therefore reduces the workers only.

use crate::options::{Compression, Options, available_threads};
use crate::pack;
use crate::pack::pool::IN_FLIGHT_MIN;
use crate::tree::Tree;
use tuff_codec::Method;

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

/// Returns the number of workers: the given or the available one, or fewer if `limit`, the memory limit of the control
/// group in bytes, has no room for them.
pub(crate) fn threads(options: &Options, limit: Option<u64>) -> usize {
    let all = options.resources.threads.unwrap_or_else(available_threads);
    let (None, Some(limit)) = (options.resources.threads, limit) else {
        return all;
    };
    let room = limit.saturating_sub(memory(options)) / worker_cost(options);
    usize::try_from(room).unwrap_or(all).clamp(1, all)
}

/// Returns a warning if even one worker may need more than the memory limit of the control group for `content` bytes.
pub(crate) fn limit_warning(options: &Options, limit: Option<u64>, content: u64) -> Option<String> {
    const MIB: u64 = 1 << 20;
    let segment = pack::job_cost(largest_segment(options).min(content));
    let needed = 2 * segment + encoder_cost(options);
    limit.filter(|limit| needed > *limit).map(|limit| {
        format!(
            "a worker may need {} MiB of memory, but the limit of the control group is {} MiB: smaller clusters (-C) or a lower level need less",
            needed.div_ceil(MIB),
            limit / MIB,
        )
    })
}

/// Returns the bytes that a worker needs: a job, the buffers that it keeps between jobs, and its encoder.
fn worker_cost(options: &Options) -> u64 {
    2 * pack::job_cost(largest_segment(options)) + encoder_cost(options)
}

/// Returns the bytes of the largest encoder, rounded up: match tables grow with the level and with the cluster.
fn encoder_cost(options: &Options) -> u64 {
    const MIB: u64 = 1 << 20;
    let cost = |compression: &Compression| match compression.method {
        Method::Lz4 | Method::Lz4hc | Method::Deflate => 4 * MIB,
        Method::Zstd => 48 * MIB,
        Method::Lzma => 96 * MIB,
    };
    let rules = options.compression.rules.iter();
    let all = options.compression.default.into_iter();
    let all = all.chain(rules.filter_map(|rule| rule.compression));
    all.map(|compression| cost(&compression)).max().unwrap_or(0)
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
    use crate::source::{Content, Entry, Kind, Meta};
    use crate::tree::Whiteouts;

    fn with_memory(memory: u64) -> Options {
        let mut options = Options::default();
        options.resources.memory = Some(memory);
        options
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
        let mut options = Options::default();
        options.compression.cluster = 1 << 20;
        let in_flight =
            |options: &Options, threads| Budget::new(options, &tree(10), threads).in_flight;
        assert!(in_flight(&options, 2) >= 192 << 20);
        assert!(in_flight(&options, 16) >= 1088 << 20);
        assert_eq!(Budget::new(&options, &tree(10), 16).warning(&options), None);
        options.resources.memory = Some(256 << 20);
        assert_eq!(in_flight(&options, 16), in_flight(&options, 2));
        assert!(in_flight(&options, 16) < 128 << 20);
    }

    /// Regression: the limit was ignored, so that builds with large clusters were killed.
    #[test]
    fn a_limit_of_the_control_group_reduces_the_workers_unless_they_are_given() {
        let mut options = Options::default();
        options.compression.cluster = 1 << 20;
        let all = available_threads();
        assert_eq!(threads(&options, None), all);
        assert_eq!(threads(&options, Some(1 << 40)), all);
        assert_eq!(threads(&options, Some(100 << 20)), 1);
        // 256 MiB of shares, and 132 MiB and a bit for each worker.
        assert_eq!(threads(&options, Some(600 << 20)), all.min(2));
        let warning = |limit| limit_warning(&options, Some(limit), 1 << 30);
        assert_eq!(warning(200 << 20), None);
        assert!(warning(100 << 20).unwrap().contains("is 100 MiB"));
        assert_eq!(limit_warning(&options, Some(100 << 20), 1 << 20), None);
        options.resources.threads = Some(7);
        assert_eq!(threads(&options, Some(100 << 20)), 7);
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
