//! Decoding strategies, and the policy that chooses one of them for each cluster.

use std::fmt;
use std::str::FromStr;
use tuff_codec::{Algorithm, Decoder};

/// Strategy for decoding a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Strategy {
    /// Decodes the whole extent into contiguous memory: the caller's buffer if all of it is
    /// requested, otherwise a buffer of the cache.
    Gathered,
    /// Decodes the needed prefix into a buffer of the thread, and copies the requested part.
    Buffer,
    /// Decodes the needed prefix through a window of 64 KiB and keeps only the requested part.
    Rolling,
    /// Reads the compressed bytes into the end of the output buffer and decodes them there. LZ4
    /// only; other algorithms use `Gathered`.
    InPlace,
}

impl Strategy {
    /// All strategies, in the order of [`Counters::decodes`](super::Counters::decodes).
    pub const ALL: [Self; 4] = [Self::Gathered, Self::Buffer, Self::Rolling, Self::InPlace];

    /// Name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Gathered => "gathered",
            Self::Buffer => "buffer",
            Self::Rolling => "rolling",
            Self::InPlace => "in-place",
        }
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Strategy {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|strategy| strategy.name() == s);
        found.ok_or_else(|| {
            format!("unknown strategy {s:?}: expected gathered, buffer, rolling or in-place")
        })
    }
}

/// Maximum length of a prefix that is decoded into the thread's buffer. Unit: bytes.
pub(crate) const BUFFER_MAX: usize = 1 << 20;

/// Minimum length of a request that is treated like a sequential one: most of each cluster that it
/// touches is needed. Unit: bytes.
pub(crate) const CLUSTERED: usize = 32 << 10;

/// Returns the number of later uses for which caching a whole cluster pays. Decoding a whole
/// cluster into new memory costs more than twice as much as a cheap prefix. A Zstandard prefix
/// costs nearly as much as the whole cluster.
///
/// With `push`, later uses cost almost nothing, because the kernel's page cache serves them.
pub(crate) fn uses_that_pay(algorithm: Algorithm, push: bool) -> f32 {
    match algorithm {
        Algorithm::Zstd => 0.25,
        _ if push => 1.0,
        _ => 1.5,
    }
}

/// Returns the average number of later uses from which a cluster is decoded completely at its first
/// use. `None`: never.
///
/// Otherwise the first two uses decode a prefix each, and the push decodes the whole cluster. For
/// Zstandard, prefixes and push cost about two complete decodes; decoding completely at the first
/// use costs half a decode more than a prefix. LZ4 prefixes are cheap compared with new memory for
/// a whole cluster.
pub(crate) fn uses_that_pay_at_once(algorithm: Algorithm) -> Option<f32> {
    (algorithm != Algorithm::Lz4).then_some(0.5)
}

/// Returns `k` so that one in `k` push candidates is cached instead, after `n` candidates: the uses
/// of cached clusters are visible to the server. A cached LZ4 cluster takes new memory, which costs
/// several times as much as the prefixes that it saves. Prefixes of other algorithms cost nearly as
/// much as the whole cluster.
pub(crate) fn trial_one_in(algorithm: Algorithm, n: usize) -> usize {
    match algorithm {
        // By then there are enough samples to decide.
        Algorithm::Lz4 if n >= 128 => 64,
        Algorithm::Lz4 => 16,
        _ => 8,
    }
}

/// Returns the number of further steps of a strided reader in a cluster for which decoding and
/// caching all of it pays. Prefixes for k steps cost (k + 1) / 2 clusters. LZ4 decodes prefixes at
/// twice the speed, into a buffer that is in the CPU cache. Prefixes of other algorithms are
/// expensive compared with a page fault.
pub(crate) fn steps_that_pay(algorithm: Algorithm) -> u64 {
    match algorithm {
        Algorithm::Lz4 => 4,
        _ => 2,
    }
}

/// Input of the policy: the cluster, the requested part and the access pattern.
pub(crate) struct PolicyInput {
    pub(crate) algorithm: Algorithm,
    /// Length of the cluster on disk. Unit: bytes.
    pub(crate) compressed: usize,
    /// Length of the decoded extent. Unit: bytes.
    pub(crate) decoded: usize,
    /// Decoded bytes before the requested part. Unit: bytes.
    pub(crate) skip: usize,
    pub(crate) take: usize,
    /// Bytes of the caller's buffer after the requested part that may be overwritten.
    pub(crate) slack: usize,
    /// The stream ends at the end of its cluster, and decodes to exactly the extent.
    pub(crate) exact: bool,
    /// The access is sequential or long.
    pub(crate) clustered: bool,
    /// The cluster was partly decoded before, and caching such clusters pays.
    pub(crate) seen: bool,
    /// A decoded cluster of this length may be cached.
    pub(crate) fits: bool,
}

/// Decision of the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) strategy: Strategy,
    pub(crate) destination: Destination,
}

/// Destination of the decoded bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Destination {
    /// The caller's buffer, without caching.
    Caller,
    /// A buffer of the cluster cache.
    CachedCluster,
}

/// Chooses a strategy and a destination. A `forced` strategy that is not applicable is replaced.
pub(crate) fn choose(s: &PolicyInput, forced: Option<Strategy>) -> Plan {
    let whole = s.skip == 0 && s.take == s.decoded;
    let plan = |strategy, destination| Plan {
        strategy,
        destination,
    };
    let in_place = s.algorithm == Algorithm::Lz4
        && s.exact
        && (!whole || Decoder::in_place_len(s.compressed, s.decoded) <= s.decoded + s.slack);
    let part = if s.skip + s.take <= BUFFER_MAX {
        Strategy::Buffer
    } else {
        Strategy::Rolling
    };
    match forced {
        Some(Strategy::Buffer) => return plan(part, Destination::Caller),
        Some(Strategy::Rolling) => return plan(Strategy::Rolling, Destination::Caller),
        Some(Strategy::Gathered) if whole => return plan(Strategy::Gathered, Destination::Caller),
        Some(Strategy::InPlace) if whole && in_place => {
            return plan(Strategy::InPlace, Destination::Caller);
        }
        Some(Strategy::InPlace) if whole => return plan(Strategy::Gathered, Destination::Caller),
        Some(Strategy::Gathered) if s.fits => {
            return plan(Strategy::Gathered, Destination::CachedCluster);
        }
        Some(Strategy::InPlace) if s.fits && in_place => {
            return plan(Strategy::InPlace, Destination::CachedCluster);
        }
        Some(Strategy::InPlace) if s.fits => {
            return plan(Strategy::Gathered, Destination::CachedCluster);
        }
        _ => {}
    }
    if whole {
        return plan(Strategy::Gathered, Destination::Caller);
    }
    if !s.fits {
        return plan(part, Destination::Caller);
    }
    // The first use of a cluster decodes no more than it needs, and a later one decodes all of it.
    // No cluster costs more than twice as much as with knowledge of the future.
    if !s.clustered && !s.seen {
        return plan(part, Destination::Caller);
    }
    plan(Strategy::Gathered, Destination::CachedCluster)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn input() -> PolicyInput {
        PolicyInput {
            algorithm: Algorithm::Lz4,
            compressed: 65_536,
            decoded: 200_000,
            skip: 0,
            take: 4096,
            slack: 0,
            exact: true,
            clustered: false,
            seen: false,
            fits: true,
        }
    }

    #[test]
    fn a_first_use_decodes_a_part_and_a_second_use_everything() {
        let mut s = input();
        assert_eq!(choose(&s, None).destination, Destination::Caller);
        s.seen = true;
        assert_eq!(choose(&s, None).destination, Destination::CachedCluster);
        s.seen = false;
        s.clustered = true;
        assert_eq!(choose(&s, None).destination, Destination::CachedCluster);
    }

    #[test]
    fn few_lz4_clusters_are_cached_as_push_trials() {
        let tried = |algorithm, range: std::ops::Range<usize>| {
            let tried = |n: &usize| n.is_multiple_of(trial_one_in(algorithm, *n));
            range.filter(tried).count()
        };
        assert_eq!(tried(Algorithm::Lz4, 0..128), 8);
        assert_eq!(tried(Algorithm::Lz4, 128..6528), 100);
        assert_eq!(tried(Algorithm::Zstd, 0..6400), 800);
    }

    #[test]
    fn clusters_too_long_for_the_cache_are_decoded_through_a_window() {
        let mut s = input();
        (s.fits, s.seen) = (false, true);
        (s.decoded, s.skip) = (12 << 20, 11 << 20);
        for forced in [None].into_iter().chain(Strategy::ALL.map(Some)) {
            let plan = choose(&s, forced);
            assert_eq!(plan.strategy, Strategy::Rolling, "{forced:?}");
            assert_eq!(plan.destination, Destination::Caller);
        }
    }

    #[test]
    fn in_place_decoding_needs_slack_or_a_cache_buffer() {
        let mut s = input();
        s.take = s.decoded;
        let pick = |s: &PolicyInput| choose(s, Some(Strategy::InPlace)).strategy;
        assert_eq!(pick(&s), Strategy::Gathered);
        let room = Decoder::in_place_len(s.compressed, s.decoded) - s.decoded;
        s.slack = room - 1;
        assert_eq!(pick(&s), Strategy::Gathered);
        s.slack = room;
        assert_eq!(pick(&s), Strategy::InPlace);
        s.exact = false;
        assert_eq!(pick(&s), Strategy::Gathered);
        let s = input();
        assert_eq!(pick(&s), Strategy::InPlace);
    }

    #[test]
    fn strategies_parse_from_their_names() {
        for strategy in Strategy::ALL {
            assert_eq!(strategy.name().parse(), Ok(strategy));
        }
        assert!("vmap".parse::<Strategy>().is_err());
    }
}
