//! What a server did so far: totals that threads add to without meeting each other, and how long requests took.

use super::policy::Strategy;
use std::array::from_fn;
use std::sync::atomic::{AtomicU64, Ordering};

/// Totals since the start of a [`Server`](super::Server), for people and for the lab.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Requests that were answered.
    pub reads: u64,
    /// Requests that failed.
    pub errors: u64,
    /// Bytes that requests were answered with.
    pub returned_bytes: u64,
    /// Of these, bytes that were lent and not copied.
    pub lent_bytes: u64,
    /// Reads of the image's devices for data.
    pub fetches: u64,
    /// Bytes of these.
    pub fetched_bytes: u64,
    /// Clusters decoded, whole or in part, by [`Strategy::ALL`].
    pub decodes: [u64; 4],
    /// What they were decoded to.
    pub decoded_bytes: u64,
    /// Clusters that were held decoded.
    pub hits: u64,
    /// Clusters that were held compressed.
    pub compressed_hits: u64,
    /// Times that a thread waited for another one to decode a cluster.
    pub waits: u64,
    /// Requests that went on where an earlier one of the same file ended.
    pub sequential: u64,
    /// Bytes that devices were told will be wanted.
    pub ahead_bytes: u64,
    /// Bytes that were decoded for a cache in front of this one: see [`Server::read_rest`](super::Server::read_rest).
    pub handed_on_bytes: u64,
    /// Decoded clusters that were dropped to make room.
    pub dropped: u64,
    /// Memory in buffers right now, those of pinned clusters and free ones included. Unit: bytes.
    pub held_bytes: u64,
    /// Decoded clusters that are pinned. Unit: bytes of memory.
    pub pinned_bytes: u64,
    /// Memory in extents and other metadata right now. Unit: bytes.
    pub index_bytes: u64,
    /// How long requests took, failed ones too.
    pub latency: Latency,
}

/// What is counted per thread.
#[derive(Clone, Copy)]
pub(crate) enum Count {
    Reads,
    Errors,
    Returned,
    Lent,
    Fetches,
    Fetched,
    /// The first of four, by strategy.
    Decodes,
    ClusterCache = Self::Decodes as isize + 4,
    Hits,
    CompressedHits,
    Sequential,
    Ahead,
    HandedOn,
}

const COUNTS: usize = Count::HandedOn as usize + 1;

/// What one request adds.
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

/// Totals, in cells that lie apart: a thread mostly has its own.
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

    /// Adds what a request of `ns` nanoseconds did, and empties the tally.
    pub(crate) fn add(&self, cell: usize, tally: &mut Tally, ns: u64) {
        self.add_uncounted(cell, tally);
        self.0[cell % CELLS].latency[Latency::bucket(ns)].fetch_add(1, Ordering::Relaxed);
    }

    /// Adds what was done for no request.
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
            lent_bytes: get(Count::Lent),
            fetches: get(Count::Fetches),
            fetched_bytes: get(Count::Fetched),
            decodes: from_fn(|n| sum(Count::Decodes as usize + n)),
            decoded_bytes: get(Count::ClusterCache),
            hits: get(Count::Hits),
            compressed_hits: get(Count::CompressedHits),
            sequential: get(Count::Sequential),
            ahead_bytes: get(Count::Ahead),
            handed_on_bytes: get(Count::HandedOn),
            latency: Latency(latency),
            ..Counters::default()
        }
    }
}

/// How long things took: counts by duration, in steps of a quarter of a doubling.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Latency([u64; Latency::BUCKETS]);

impl Default for Latency {
    fn default() -> Self {
        Self([0; Self::BUCKETS])
    }
}

impl Latency {
    /// Number of steps: up to 68 seconds.
    pub const BUCKETS: usize = 4 * 34;

    /// The step that `ns` nanoseconds fall into; the last is for all that is longer.
    fn bucket(ns: u64) -> usize {
        let ns = ns.max(4);
        let bits = ns.ilog2();
        let quarter = (ns >> (bits - 2)) & 3;
        // Fits: at most 252.
        ((4 * (bits - 2)) as usize + quarter as usize).min(Self::BUCKETS - 1)
    }

    /// The shortest duration of each step, and how many took at least that and less than the next. Unit: nanoseconds.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> {
        let from = |n: usize| (4 + n as u64 % 4) << (n / 4);
        self.0
            .iter()
            .enumerate()
            .map(move |(n, count)| (from(n), *count))
    }

    /// How many there were.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.iter().sum()
    }

    /// The duration that a share of `q` (0 to 1) did not exceed, from above, at most a quarter too long. Unit:
    /// nanoseconds. 0 if there was none.
    #[must_use]
    pub fn quantile(&self, q: f64) -> u64 {
        // Fits: rounded and bounded.
        let wanted = (self.count() as f64 * q.clamp(0.0, 1.0)).ceil() as u64;
        let (mut seen, mut last) = (0, 0);
        for ((_, count), (next, _)) in self.buckets().zip(self.buckets().skip(1)) {
            seen += count;
            if count > 0 {
                last = next;
            }
            if seen >= wanted && seen > 0 {
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
    fn a_duration_falls_into_the_step_that_starts_below_it() {
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
