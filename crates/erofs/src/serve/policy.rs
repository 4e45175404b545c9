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

/// Policy that chooses a strategy and a destination for each cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Policy {
    /// Chooses by algorithm, access pattern and state of the cache.
    #[default]
    Adaptive,
    /// Policy of the commercial kernel in the ATC 2019 paper: short prefixes through the buffer of the thread, all else
    /// gathered.
    Commercial,
    /// Policy of the latest kernel in the ATC 2019 paper: in place where the margin allows, short prefixes through the
    /// buffer of the thread, all else rolling.
    Latest,
    /// One strategy for all clusters that support it.
    Only(Strategy),
}

impl Policy {
    /// All policies.
    pub const ALL: [Self; 7] = [
        Self::Adaptive,
        Self::Commercial,
        Self::Latest,
        Self::Only(Strategy::Gathered),
        Self::Only(Strategy::Buffer),
        Self::Only(Strategy::Rolling),
        Self::Only(Strategy::InPlace),
    ];

    /// Name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Adaptive => "adaptive",
            Self::Commercial => "commercial",
            Self::Latest => "latest",
            Self::Only(strategy) => strategy.name(),
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Policy {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|policy| policy.name() == s);
        found.ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("unknown policy {s:?}: expected one of {names}")
        })
    }
}

/// Maximum length of a prefix that the policies of the paper decode into the thread's buffer: four blocks. Unit: bytes.
const SHORT_PREFIX_MAX: usize = 4 * 4096;

/// Minimum length on disk of a cluster that is read by itself although the request needs adjacent ones. One read for
/// several shorter clusters costs less than the copies that in-place decoding saves. Unit: bytes.
const IN_PLACE_MIN: usize = 64 << 10;

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
    /// Its compressed bytes are in memory, or one read gets them together with those of adjacent clusters.
    pub(crate) run: bool,
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

/// Chooses a strategy and a destination. A strategy that is not applicable is replaced.
pub(crate) fn choose(s: &PolicyInput, policy: Policy) -> Plan {
    let whole = s.skip == 0 && s.take == s.decoded;
    let end = s.skip + s.take;
    let plan = |strategy, destination| Plan {
        strategy,
        destination,
    };
    let to_caller = |strategy| plan(strategy, Destination::Caller);
    // The margin is a bound from the two lengths, so nothing is simulated or recorded.
    let in_place = s.algorithm == Algorithm::Lz4
        && s.exact
        && (!whole || Decoder::in_place_len(s.compressed, s.decoded) <= s.decoded + s.slack);
    let part = if end <= BUFFER_MAX {
        Strategy::Buffer
    } else {
        Strategy::Rolling
    };
    let complete = match policy {
        Policy::Adaptive if in_place && whole && (!s.run || s.compressed >= IN_PLACE_MIN) => {
            Strategy::InPlace
        }
        Policy::Latest | Policy::Only(Strategy::InPlace) if in_place => Strategy::InPlace,
        _ => Strategy::Gathered,
    };
    match policy {
        Policy::Only(Strategy::Buffer) => to_caller(part),
        Policy::Only(Strategy::Rolling) => to_caller(Strategy::Rolling),
        Policy::Commercial | Policy::Latest if !whole && end <= SHORT_PREFIX_MAX => {
            to_caller(Strategy::Buffer)
        }
        Policy::Latest if !in_place => to_caller(Strategy::Rolling),
        _ if whole => to_caller(complete),
        _ if !s.fits => to_caller(part),
        // The first use of a cluster decodes no more than it needs, and a later one decodes all of it.
        // No cluster costs more than twice as much as with knowledge of the future.
        Policy::Adaptive if !s.clustered && !s.seen => to_caller(part),
        _ => plan(complete, Destination::CachedCluster),
    }
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
            run: false,
        }
    }

    #[test]
    fn a_first_use_decodes_a_part_and_a_second_use_everything() {
        let mut s = input();
        assert_eq!(
            choose(&s, Policy::Adaptive).destination,
            Destination::Caller
        );
        s.seen = true;
        assert_eq!(
            choose(&s, Policy::Adaptive).destination,
            Destination::CachedCluster
        );
        s.seen = false;
        s.clustered = true;
        assert_eq!(
            choose(&s, Policy::Adaptive).destination,
            Destination::CachedCluster
        );
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
        for policy in Policy::ALL {
            let plan = choose(&s, policy);
            assert_eq!(plan.strategy, Strategy::Rolling, "{policy}");
            assert_eq!(plan.destination, Destination::Caller);
        }
    }

    #[test]
    fn in_place_decoding_needs_slack_or_a_cache_buffer() {
        let mut s = input();
        s.take = s.decoded;
        let pick = |s: &PolicyInput| choose(s, Policy::Only(Strategy::InPlace)).strategy;
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
    fn whole_clusters_are_decoded_in_place_unless_one_read_gets_several_short_ones() {
        let mut s = input();
        (s.take, s.slack) = (s.decoded, 4096);
        let pick = |s: &PolicyInput| choose(s, Policy::Adaptive).strategy;
        assert_eq!(pick(&s), Strategy::InPlace);
        s.run = true;
        assert_eq!(pick(&s), Strategy::InPlace);
        s.compressed = 4096;
        assert_eq!(pick(&s), Strategy::Gathered);
        s.run = false;
        assert_eq!(pick(&s), Strategy::InPlace);
        s.slack = 0;
        assert_eq!(pick(&s), Strategy::Gathered);
    }

    #[test]
    fn the_policies_of_the_paper_differ_in_long_parts() {
        let mut s = input();
        let pick = |s: &PolicyInput, policy| {
            let plan = choose(s, policy);
            (plan.strategy, plan.destination)
        };
        let (caller, cached) = (Destination::Caller, Destination::CachedCluster);
        for policy in [Policy::Commercial, Policy::Latest] {
            assert_eq!(pick(&s, policy), (Strategy::Buffer, caller));
        }
        s.skip = 12_289;
        assert_eq!(pick(&s, Policy::Commercial), (Strategy::Gathered, cached));
        assert_eq!(pick(&s, Policy::Latest), (Strategy::InPlace, cached));
        s.algorithm = Algorithm::Zstd;
        assert_eq!(pick(&s, Policy::Latest), (Strategy::Rolling, caller));
    }

    #[test]
    fn policies_parse_from_their_names() {
        for policy in Policy::ALL {
            assert_eq!(policy.name().parse(), Ok(policy));
        }
        assert!("vmap".parse::<Policy>().is_err());
    }
}
