//! How a cluster is decoded: four ways, and which one when.

use std::fmt;
use std::str::FromStr;
use tuff_codec::{Algorithm, Decoder};

/// A way to decode a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Strategy {
    /// The whole extent into one run of memory: the caller's buffer where all of it is asked for, otherwise a cached
    /// one.
    Gathered,
    /// As far as needed into a buffer of the thread, from which the part that is asked for is copied.
    Buffer,
    /// Through a window of 64 KiB, as far as needed: nothing in front of the part that is asked for is kept.
    Rolling,
    /// Compressed bytes are read into the end of the output and decoded there. LZ4 only; others are gathered.
    InPlace,
}

impl Strategy {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Gathered, Self::Buffer, Self::Rolling, Self::InPlace];

    /// The name on command lines.
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
            format!("{s:?} is no strategy: expected gathered, buffer, rolling or in-place")
        })
    }
}

/// The longest prefix that is decoded into a thread's buffer. Unit: bytes.
pub(crate) const BUFFER_MAX: usize = 1 << 20;

/// Requests at least this long want most of what they touch, now or next. Unit: bytes.
pub(crate) const CLUSTERED: usize = 32 << 10;

/// How often a held cluster must be used again to be worth it. Decoding all of it instead of a prefix, into memory that
/// no cache has, costs more than twice as much where a prefix is cheap; a Zstandard prefix is hardly cheaper than all.
///
/// Where clusters are handed on, later uses cost next to nothing.
pub(crate) fn uses_that_pay(algorithm: Algorithm, hand_on: bool) -> f32 {
    match algorithm {
        Algorithm::Zstd => 0.25,
        _ if hand_on => 1.0,
        _ => 1.5,
    }
}

/// How often held clusters must have been used again, so far, for all of one to be decoded when it is first touched.
/// `None`: never.
///
/// A prefix at the first touch, one at the second, and all for whoever it is handed on to are two decodings of a Zstandard
/// cluster; one costs half of one more than a prefix. LZ4's prefixes are cheap beside fresh memory for all.
pub(crate) fn uses_that_pay_at_once(algorithm: Algorithm) -> Option<f32> {
    (algorithm != Algorithm::Lz4).then_some(0.5)
}

/// One in so many clusters is held where it could be handed on, after `n` of either: its uses are seen. All of one takes fresh memory, which is
/// several times what LZ4's prefixes cost that it saves; others' prefixes cost nearly as much as all.
pub(crate) fn trial_one_in(algorithm: Algorithm, n: usize) -> usize {
    match algorithm {
        // By then there are as many as it takes to judge.
        Algorithm::Lz4 if n >= 128 => 64,
        Algorithm::Lz4 => 16,
        _ => 8,
    }
}

/// How many more steps of an even reader must fall into a cluster for all of it to be decoded and held at the first one.
/// Prefixes for k steps come to (k + 1) / 2 clusters; LZ4 decodes those at twice the speed, into a buffer that the
/// processor's cache has, and others' prefixes cost much beside a page fault.
pub(crate) fn steps_that_pay(algorithm: Algorithm) -> u64 {
    match algorithm {
        Algorithm::Lz4 => 4,
        _ => 2,
    }
}

/// All that the choice depends on.
pub(crate) struct Situation {
    pub(crate) algorithm: Algorithm,
    /// Bytes of the cluster.
    pub(crate) compressed: usize,
    /// What it decodes to. Unit: bytes.
    pub(crate) decoded: usize,
    /// The part that is asked for. Unit: bytes.
    pub(crate) skip: usize,
    pub(crate) take: usize,
    /// Bytes of the caller's buffer behind that part that are written later.
    pub(crate) slack: usize,
    /// The stream ends where its cluster does, and decodes to exactly the extent.
    pub(crate) exact: bool,
    /// The reader goes on where it ended, or reads much at once.
    pub(crate) clustered: bool,
    /// It was decoded in part lately, and holding such clusters pays.
    pub(crate) seen: bool,
    /// A decoded cluster of this length may be held.
    pub(crate) fits: bool,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) strategy: Strategy,
    pub(crate) into: Into,
}

/// Where decoded bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Into {
    /// The caller's buffer.
    Caller,
    /// A buffer that is held for others.
    CachedCluster,
}

/// Picks. A `forced` strategy that cannot do it gives way to one that can.
pub(crate) fn choose(s: &Situation, forced: Option<Strategy>) -> Plan {
    let whole = s.skip == 0 && s.take == s.decoded;
    let plan = |strategy, into| Plan { strategy, into };
    let in_place = s.algorithm == Algorithm::Lz4
        && s.exact
        && (!whole || Decoder::in_place_len(s.compressed, s.decoded) <= s.decoded + s.slack);
    let part = if s.skip + s.take <= BUFFER_MAX {
        Strategy::Buffer
    } else {
        Strategy::Rolling
    };
    match forced {
        Some(Strategy::Buffer) => return plan(part, Into::Caller),
        Some(Strategy::Rolling) => return plan(Strategy::Rolling, Into::Caller),
        Some(Strategy::Gathered) if whole => return plan(Strategy::Gathered, Into::Caller),
        Some(Strategy::InPlace) if whole && in_place => {
            return plan(Strategy::InPlace, Into::Caller);
        }
        Some(Strategy::InPlace) if whole => return plan(Strategy::Gathered, Into::Caller),
        Some(Strategy::Gathered) if s.fits => return plan(Strategy::Gathered, Into::CachedCluster),
        Some(Strategy::InPlace) if s.fits && in_place => {
            return plan(Strategy::InPlace, Into::CachedCluster);
        }
        Some(Strategy::InPlace) if s.fits => return plan(Strategy::Gathered, Into::CachedCluster),
        _ => {}
    }
    if whole {
        return plan(Strategy::Gathered, Into::Caller);
    }
    if !s.fits {
        return plan(part, Into::Caller);
    }
    // The first to touch a cluster somewhere decodes no more than it needs; who comes back decodes all of it. That way
    // no cluster costs more than twice as much as if the future were known.
    if !s.clustered && !s.seen {
        return plan(part, Into::Caller);
    }
    plan(Strategy::Gathered, Into::CachedCluster)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn situation() -> Situation {
        Situation {
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
    fn a_first_touch_decodes_a_part_and_the_second_all() {
        let mut s = situation();
        assert_eq!(choose(&s, None).into, Into::Caller);
        s.seen = true;
        assert_eq!(choose(&s, None).into, Into::CachedCluster);
        s.seen = false;
        s.clustered = true;
        assert_eq!(choose(&s, None).into, Into::CachedCluster);
    }

    #[test]
    fn few_lz4_clusters_are_held_to_see_whether_handing_on_pays() {
        let tried = |algorithm, range: std::ops::Range<usize>| {
            let tried = |n: &usize| n.is_multiple_of(trial_one_in(algorithm, *n));
            range.filter(tried).count()
        };
        assert_eq!(tried(Algorithm::Lz4, 0..128), 8);
        assert_eq!(tried(Algorithm::Lz4, 128..6528), 100);
        assert_eq!(tried(Algorithm::Zstd, 0..6400), 800);
    }

    #[test]
    fn what_may_not_be_held_is_decoded_within_bounds() {
        let mut s = situation();
        (s.fits, s.seen) = (false, true);
        (s.decoded, s.skip) = (12 << 20, 11 << 20);
        for forced in [None].into_iter().chain(Strategy::ALL.map(Some)) {
            let plan = choose(&s, forced);
            assert_eq!(plan.strategy, Strategy::Rolling, "{forced:?}");
            assert_eq!(plan.into, Into::Caller);
        }
    }

    #[test]
    fn in_place_needs_room_behind_or_a_buffer_of_its_own() {
        let mut s = situation();
        s.take = s.decoded;
        let pick = |s: &Situation| choose(s, Some(Strategy::InPlace)).strategy;
        assert_eq!(pick(&s), Strategy::Gathered);
        let room = Decoder::in_place_len(s.compressed, s.decoded) - s.decoded;
        s.slack = room - 1;
        assert_eq!(pick(&s), Strategy::Gathered);
        s.slack = room;
        assert_eq!(pick(&s), Strategy::InPlace);
        s.exact = false;
        assert_eq!(pick(&s), Strategy::Gathered);
        let s = situation();
        assert_eq!(pick(&s), Strategy::InPlace);
    }

    #[test]
    fn names_come_back() {
        for strategy in Strategy::ALL {
            assert_eq!(strategy.name().parse(), Ok(strategy));
        }
        assert!("vmap".parse::<Strategy>().is_err());
    }
}
