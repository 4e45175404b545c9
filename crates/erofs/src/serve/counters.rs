//! Counters of a server: totals in per-thread cells without contention, and request latencies.

use super::policy::Strategy;
use std::array::from_fn;
use std::sync::atomic::{AtomicU64, Ordering};

/// Totals since the start of a [`Server`](super::Server), for metrics and benchmarks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Requests that succeeded, including those at the end of a file.
    pub reads: u64,
    /// Requests that returned an error.
    pub errors: u64,
    /// Bytes returned by requests.
    pub returned_bytes: u64,
    /// Part of `returned_bytes` that was returned by reference, without a copy.
    pub zero_copy_bytes: u64,
    /// Reads of file data from the image's devices.
    pub fetches: u64,
    /// Bytes of these reads.
    pub fetched_bytes: u64,
    /// Clusters decoded, completely or in part, by [`Strategy::ALL`].
    pub decodes: [u64; 4],
    /// Bytes produced by these decodes.
    pub decoded_bytes: u64,
    /// Hits in the cache of decoded clusters.
    pub hits: u64,
    /// Hits in the cache of compressed clusters.
    pub compressed_hits: u64,
    /// Times that a thread waited for another one to decode a cluster.
    pub waits: u64,
    /// Requests that continued where an earlier one of the same file ended.
    pub sequential: u64,
    /// Bytes of readahead hints to devices.
    pub ahead_bytes: u64,
    /// Decoded bytes pushed to a cache above the server: see
    /// [`Server::read_pushed`](super::Server::read_pushed).
    pub pushed_bytes: u64,
    /// Decoded clusters that were evicted.
    pub dropped: u64,
    /// Memory in buffers, including those of pinned clusters and free ones. Unit: bytes.
    pub held_bytes: u64,
    /// Memory of pinned clusters. Unit: bytes.
    pub pinned_bytes: u64,
    /// Memory of cached extents and other metadata. Unit: bytes.
    pub index_bytes: u64,
    /// Latencies of all requests, including failed ones.
    pub latency: Latency,
}

/// Index of a counter in a [`Tally`].
#[derive(Clone, Copy)]
pub(crate) enum Count {
    Reads,
    Errors,
    Returned,
    ZeroCopy,
    Fetches,
    Fetched,
    /// The first of four counters, one per strategy.
    Decodes,
    ClusterCache = Self::Decodes as isize + 4,
    Hits,
    CompressedHits,
    Sequential,
    Ahead,
    Pushed,
}

const COUNTS: usize = Count::Pushed as usize + 1;

/// Counters of one request before they are added to the totals.
#[derive(Default)]
pub(crate) struct Tally([u64; COUNTS]);

impl Tally {
    pub(crate) fn add(&mut self, count: Count, n: u64) {
        self.0[count as usize] += n;
    }

    pub(crate) fn decoded(&mut self, strategy: Strategy, bytes: usize) {
        self.0[Count::Decodes as usize + strategy as usize] += 1;
        self.add(Count::ClusterCache, bytes as u64);
    }
}

/// Totals in cells on separate cache lines. A thread mostly has a cell to itself.
pub(crate) struct Totals([Cell; CELLS]);

const CELLS: usize = 8;

#[repr(align(128))]
struct Cell {
    counts: [AtomicU64; COUNTS],
    latency: [AtomicU64; Latency::BUCKETS],
}

impl Totals {
    pub(crate) fn new() -> Self {
        Self(from_fn(|_| Cell {
            counts: from_fn(|_| AtomicU64::new(0)),
            latency: from_fn(|_| AtomicU64::new(0)),
        }))
    }

    /// Adds the tally of a request that took `ns` nanoseconds, and clears it.
    pub(crate) fn add(&self, cell: usize, tally: &mut Tally, ns: u64) {
        self.add_uncounted(cell, tally);
        self.0[cell % CELLS].latency[Latency::bucket(ns)].fetch_add(1, Ordering::Relaxed);
    }

    /// Adds a tally that belongs to no request, and clears it.
    pub(crate) fn add_uncounted(&self, cell: usize, tally: &mut Tally) {
        for (total, n) in self.0[cell % CELLS].counts.iter().zip(&mut tally.0) {
            if *n > 0 {
                total.fetch_add(std::mem::take(n), Ordering::Relaxed);
            }
        }
    }

    pub(crate) fn counters(&self) -> Counters {
        let sum = |n: usize| -> u64 {
            let cells = self.0.iter();
            cells.map(|c| c.counts[n].load(Ordering::Relaxed)).sum()
        };
        let get = |count: Count| sum(count as usize);
        let latency = from_fn(|n| {
            let cells = self.0.iter();
            cells.map(|c| c.latency[n].load(Ordering::Relaxed)).sum()
        });
        Counters {
            reads: get(Count::Reads),
            errors: get(Count::Errors),
            returned_bytes: get(Count::Returned),
            zero_copy_bytes: get(Count::ZeroCopy),
            fetches: get(Count::Fetches),
            fetched_bytes: get(Count::Fetched),
            decodes: from_fn(|n| sum(Count::Decodes as usize + n)),
            decoded_bytes: get(Count::ClusterCache),
            hits: get(Count::Hits),
            compressed_hits: get(Count::CompressedHits),
            sequential: get(Count::Sequential),
            ahead_bytes: get(Count::Ahead),
            pushed_bytes: get(Count::Pushed),
            latency: Latency(latency),
            ..Counters::default()
        }
    }
}

/// Histogram of durations with four buckets per power of two.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Latency([u64; Latency::BUCKETS]);

impl Default for Latency {
    fn default() -> Self {
        Self([0; Self::BUCKETS])
    }
}

impl Latency {
    /// Number of buckets. They cover durations up to 68 seconds.
    pub const BUCKETS: usize = 4 * 34;

    /// Returns the bucket of a duration of `ns` nanoseconds. The last bucket takes all longer ones.
    fn bucket(ns: u64) -> usize {
        let ns = ns.max(4);
        let bits = ns.ilog2();
        let quarter = (ns >> (bits - 2)) & 3;
        // Fits: at most 252.
        ((4 * (bits - 2)) as usize + quarter as usize).min(Self::BUCKETS - 1)
    }

    /// Lower bound of each bucket, and the number of durations in it. Unit: nanoseconds.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> {
        let from = |n: usize| (4 + n as u64 % 4) << (n / 4);
        self.0
            .iter()
            .enumerate()
            .map(move |(n, count)| (from(n), *count))
    }

    /// Number of recorded durations.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Upper bound of the `q` quantile (`q` from 0 to 1), at most a quarter too high. Unit:
    /// nanoseconds. 0 if nothing was recorded.
    #[must_use]
    pub fn quantile(&self, q: f64) -> u64 {
        // Fits: rounded and bounded.
        let requested = (self.count() as f64 * q.clamp(0.0, 1.0)).ceil() as u64;
        let (mut seen, mut last) = (0, 0);
        for ((_, count), (next, _)) in self.buckets().zip(self.buckets().skip(1)) {
            seen += count;
            if count > 0 {
                last = next;
            }
            if seen >= requested && seen > 0 {
                return next;
            }
        }
        last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_contains_durations_from_its_lower_bound_on() {
        let mut latency = Latency::default();
        for ns in (4..3000).chain([1 << 20, 999_999_999, 60_000_000_000]) {
            let n = Latency::bucket(ns);
            let from = latency.buckets().nth(n).unwrap().0;
            let next = latency.buckets().nth(n + 1).unwrap().0;
            assert!((from..next).contains(&ns), "{ns}: {from} to {next}");
        }
        assert_eq!(Latency::bucket(0), 0);
        assert_eq!(Latency::bucket(u64::MAX), Latency::BUCKETS - 1);
        for (n, count) in [(Latency::bucket(1000), 90), (Latency::bucket(100_000), 10)] {
            latency.0[n] = count;
        }
        assert_eq!(latency.count(), 100);
        assert_eq!(latency.quantile(0.5), 1024);
        assert!((100_000..131_073).contains(&latency.quantile(0.99)));
        assert_eq!(Latency::default().quantile(0.5), 0);
    }

    #[test]
    fn totals_of_all_cells_add_up() {
        let totals = Totals::new();
        for cell in 0..20 {
            let mut tally = Tally::default();
            tally.add(Count::Reads, 1);
            tally.decoded(Strategy::InPlace, 100);
            tally.add(Count::Ahead, 7);
            totals.add(cell, &mut tally, 5000);
            totals.add(cell, &mut tally, 5000);
        }
        let counters = totals.counters();
        assert_eq!((counters.reads, counters.decoded_bytes), (20, 2000));
        assert_eq!(counters.decodes, [0, 0, 0, 20]);
        assert_eq!((counters.ahead_bytes, counters.latency.count()), (140, 40));
    }
}
