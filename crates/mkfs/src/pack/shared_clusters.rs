//! Clusters that several files use: which a file may take over from an earlier one, and how it learns what they are.
//!
//! A plan says where clusters of a part must begin (*stops*) and which stretches an earlier part has, too (*runs*). What
//! clusters the earlier part came to is known when it is encoded: it is posted on the *board*, and the worker with the later
//! part waits for it. Jobs are taken in order, so whoever is waited for was taken before: nobody waits for ever.
//!
//! Invariants:
//!
//! * What a part is encoded to depends on its bytes, its plan, and what the parts before it came to: not on threads.
//! * Every part whose clusters others want is posted, with nothing if it failed.

use super::grain::Grain;
use super::piece::{SegmentShape, ShortPiece};
use crate::tree::InodeId;
use hashbrown::HashMap;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use tuff_format::cluster::HeadKind;

/// Whose clusters they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum PartKey {
    /// Those of a segment of a file: the file, and which.
    Segment(InodeId, u32),
    /// Those of a file of the base, by its number among those that were looked at.
    Base(u32),
}

/// Where a file's clusters must begin, and what it shares.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FilePlan {
    /// Ascending by position.
    pub(crate) stops: Vec<Stop>,
    /// Others share parts of it.
    pub(crate) owner: bool,
}

/// A position where a cluster must begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stop {
    /// Unit: bytes of the file.
    pub(crate) at: u64,
    /// What begins there is in an earlier place, too.
    pub(crate) run: Option<PlannedRun>,
}

/// Where a stretch is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PlannedRun {
    /// Who has it.
    pub(crate) owner: Owner,
    /// Position there: a stop of the owner, or the start of a segment, or of a cluster of the base.
    pub(crate) at: u64,
    /// Unit: bytes.
    pub(crate) len: u64,
}

/// Who has a stretch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// A file of this image.
    File(InodeId),
    /// A file of the base, by its number among those that were looked at.
    Base(u32),
}

impl Owner {
    /// The part with position `at`, and where that is in it, if the owner has segments of `segment` bytes.
    fn part(self, at: u64, segment: u64) -> (PartKey, u64) {
        match self {
            // Fits: files end before 2^63, segments have a MiB at least.
            Self::File(file) => (PartKey::Segment(file, (at / segment) as u32), at % segment),
            Self::Base(i) => (PartKey::Base(i), at),
        }
    }
}

/// What a plan says about one part; positions count from the part's start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PartPlan {
    /// Ascending by position.
    pub(crate) stops: Vec<PartStop>,
    /// The part's clusters are posted under this key.
    pub(crate) post: Option<PartKey>,
}

/// A [`Stop`] of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PartStop {
    /// Unit: bytes of the part.
    pub(crate) at: usize,
    /// Where it is found: part, position there, length.
    pub(crate) run: Option<(PartKey, u64, u64)>,
}

impl FilePlan {
    /// The plan for the part of `len` bytes from `offset` on, in a file with segments of `segment` bytes.
    pub(crate) fn part(&self, file: InodeId, offset: u64, len: u64, segment: u64) -> PartPlan {
        let from = self.stops.partition_point(|s| s.at < offset);
        let to = self.stops.partition_point(|s| s.at < offset + len);
        let stops = self.stops[from..to].iter().map(|stop| PartStop {
            // Fits: a part is a few MiB.
            at: (stop.at - offset) as usize,
            run: stop.run.map(|r| {
                let (part, at) = r.owner.part(r.at, segment);
                (part, at, r.len)
            }),
        });
        PartPlan {
            stops: stops.collect(),
            post: (self.owner).then(|| Owner::File(file).part(offset, segment).0),
        }
    }
}

/// A cluster of an earlier part, or what a later one uses of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Posted {
    /// Position in the part. Unit: bytes.
    pub(crate) at: u64,
    /// The extent: its length, grains and kind.
    pub(crate) piece: ShortPiece,
    /// What the whole cluster decodes to. Unit: bytes.
    pub(crate) full: u32,
    /// Whose cluster it is: part and number among its pieces.
    pub(crate) home: (PartKey, u32),
}

/// What parts came to.
#[derive(Default)]
pub(crate) struct ClusterBoard {
    posted: Mutex<HashMap<PartKey, Arc<[Posted]>>>,
    more: Condvar,
}

impl ClusterBoard {
    /// Says what a part came to. The first word counts.
    pub(crate) fn post(&self, key: PartKey, pieces: &[Posted]) {
        let mut posted = self.posted.lock().unwrap_or_else(PoisonError::into_inner);
        posted.entry(key).or_insert_with(|| pieces.into());
        drop(posted);
        self.more.notify_all();
    }

    /// What a part came to; waits until it is known.
    pub(crate) fn get(&self, key: PartKey) -> Arc<[Posted]> {
        let mut posted = self.posted.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(pieces) = posted.get(&key) {
                return Arc::clone(pieces);
            }
            posted = self
                .more
                .wait(posted)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Using clusters of another part must save so much, or it is not worth ending a cluster early. Unit: bytes of image.
const SAVING_MIN: u64 = 4 << 10;
/// A cluster that is used in part must save so much. Unit: bytes of image.
const PART_SAVING_MIN: u64 = 1 << 10;

/// Which of `posted` stand for up to `len` bytes from `from` on, as extents that begin at `at` of the later part. Empty if
/// none does, or if that saves too little.
pub(crate) fn usable(
    posted: &[Posted],
    from: u64,
    len: u64,
    at: usize,
    shape: &SegmentShape,
) -> Vec<Posted> {
    let Ok(first) = posted.binary_search_by_key(&from, |p| p.at) else {
        return Vec::new();
    };
    let (mut out, mut left, mut at, mut saved) = (Vec::new(), len, at as u64, 0);
    for p in &posted[first..] {
        let mut p = *p;
        if p.piece.grains == 0 || left == 0 {
            break;
        }
        if u64::from(p.piece.len) > left {
            // Fits: shorter than the piece.
            p.piece.len = left as u32;
            p.piece.partial = true;
            if p.saves(shape.grain) < PART_SAVING_MIN {
                break;
            }
        }
        if !fits(&p.piece, at, shape) {
            break;
        }
        saved += p.saves(shape.grain);
        at += u64::from(p.piece.len);
        left -= u64::from(p.piece.len);
        p.piece.shared = true;
        out.push(p);
    }
    if saved < SAVING_MIN {
        out.clear();
    }
    out
}

/// True if an index can hold an extent like this at position `at` with others behind it. Where clusters begin at blocks, it
/// ends in a later lcluster than it starts in, and with one more between them if its number of blocks must be said.
pub(crate) fn fits(piece: &ShortPiece, at: u64, shape: &SegmentShape) -> bool {
    let block = shape.block as u64;
    let crossed = (at % block + u64::from(piece.len)) / block;
    let enough = crossed >= if piece.grains > 1 { 2 } else { 1 };
    (enough || shape.unaligned()) && (piece.kind != HeadKind::Plain || !piece.partial)
}

impl Posted {
    /// What it saves to use it. Unit: bytes of image.
    fn saves(&self, grain: Grain) -> u64 {
        grain.bytes(self.piece.grains.into()) * u64::from(self.piece.len)
            / u64::from(self.full.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::super::piece::TailPolicy;
    use super::*;
    use tuff_format::BlockBits;

    const BLOCKS: SegmentShape = SegmentShape {
        block: 4096,
        grain: Grain::new(BlockBits::B4K, false),
        cluster: 65536,
        tail: TailPolicy::Cluster,
    };

    fn posted(at: u64, len: u32, grains: u16) -> Posted {
        let piece = ShortPiece {
            len,
            grains,
            kind: HeadKind::Head1,
            partial: false,
            shared: false,
        };
        Posted {
            at,
            piece,
            full: len,
            home: (PartKey::Segment(1, 0), 0),
        }
    }

    fn lens(posted: &[Posted], from: u64, len: u64) -> Vec<(u32, bool)> {
        let found = usable(posted, from, len, 0, &BLOCKS);
        found
            .iter()
            .map(|p| (p.piece.len, p.piece.partial))
            .collect()
    }

    #[test]
    fn whole_clusters_and_the_beginning_of_one_are_used() {
        let all = [
            posted(0, 40_000, 4),
            posted(40_000, 50_000, 4),
            posted(90_000, 30_000, 4),
        ];
        assert_eq!(lens(&all, 0, 40_000), [(40_000, false)]);
        assert_eq!(lens(&all, 0, 60_000), [(40_000, false), (20_000, true)]);
        assert_eq!(
            lens(&all, 40_000, 80_000),
            [(50_000, false), (30_000, false)]
        );
        // No cluster begins there; too little is saved; nothing follows.
        assert_eq!(lens(&all, 10, 60_000), []);
        assert_eq!(lens(&all, 0, 9_000), []);
        assert_eq!(lens(&all, 40_000, 1 << 30).len(), 2);
    }

    #[test]
    fn an_extent_that_an_index_cannot_hold_is_not_used() {
        let one = posted(0, 5000, 1).piece;
        assert!(fits(&one, 0, &BLOCKS) && fits(&one, 4000, &BLOCKS));
        let short = posted(0, 90, 1).piece;
        assert!(!fits(&short, 0, &BLOCKS) && fits(&short, 4006, &BLOCKS));
        let big = posted(0, 8192, 2).piece;
        assert!(fits(&big, 0, &BLOCKS) && fits(&big, 4095, &BLOCKS));
        let cut = posted(0, 8000, 2).piece;
        assert!(!fits(&cut, 0, &BLOCKS) && fits(&cut, 192, &BLOCKS));
    }

    #[test]
    fn plans_are_cut_into_parts() {
        let run = PlannedRun {
            owner: Owner::File(3),
            at: 2500,
            len: 70,
        };
        let plan = FilePlan {
            stops: vec![
                Stop { at: 10, run: None },
                Stop {
                    at: 1000,
                    run: Some(run),
                },
            ],
            owner: true,
        };
        let first = plan.part(7, 0, 1000, 1000);
        assert_eq!(first.stops, [PartStop { at: 10, run: None }]);
        assert_eq!(first.post, Some(PartKey::Segment(7, 0)));
        let second = plan.part(7, 1000, 500, 1000);
        let run = Some((PartKey::Segment(3, 2), 500, 70));
        assert_eq!(second.stops, [PartStop { at: 0, run }]);
        assert_eq!(second.post, Some(PartKey::Segment(7, 1)));
    }
}
