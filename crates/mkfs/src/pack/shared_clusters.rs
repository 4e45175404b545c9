//! Clusters that several files share.
//!
//! A plan lists positions where clusters of a part must start (*stops*), and ranges that an earlier part has as well
//! (*runs*). The clusters of the earlier part are known once it is encoded. Its worker posts them on the *board*, and
//! the worker of the later part waits for them. Jobs are taken in order, so that every wait ends.
//!
//! Invariants:
//!
//! * The result of a part depends on its bytes, its plan and the earlier parts, not on threads.
//! * Every part with clusters that others use is posted, with no clusters if it failed.

use super::grain::Grain;
use super::piece::{SegmentShape, ShortPiece};
use crate::tree::InodeId;
use hashbrown::HashMap;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use tuff_format::cluster::HeadKind;

/// Part that owns clusters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum PartKey {
    /// Segment of a file: the file and the number of the segment.
    Segment(InodeId, u32),
    /// File of a base, by its number in the dedupe plan.
    Base(u32),
}

/// Stops and shared ranges of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FilePlan {
    /// Stops in ascending order.
    pub(crate) stops: Vec<Stop>,
    /// True if other files share ranges of this file.
    pub(crate) owner: bool,
}

/// Position where a cluster must start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stop {
    /// Position in the file in bytes.
    pub(crate) at: u64,
    /// Earlier place of the range that starts here.
    pub(crate) run: Option<PlannedRun>,
}

/// Earlier place of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PlannedRun {
    /// File that has the range.
    pub(crate) owner: Owner,
    /// Position in that file: one of its stops, or the start of a segment or of a cluster of the base.
    pub(crate) at: u64,
    /// Length of the range in bytes.
    pub(crate) len: u64,
}

/// File that has a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// File of this image.
    File(InodeId),
    /// File of a base, by its number in the dedupe plan.
    Base(u32),
}

impl Owner {
    /// Returns the part that holds position `at`, and the position in it. Segments have `segment` bytes.
    fn part(self, at: u64, segment: u64) -> (PartKey, u64) {
        match self {
            // Fits: files end before 2^63, segments have a MiB at least.
            Self::File(file) => (PartKey::Segment(file, (at / segment) as u32), at % segment),
            Self::Base(i) => (PartKey::Base(i), at),
        }
    }
}

/// Plan of one part. Positions count from its start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PartPlan {
    /// Stops in ascending order.
    pub(crate) stops: Vec<PartStop>,
    /// Key under which the clusters of the part are posted.
    pub(crate) post: Option<PartKey>,
}

/// [`Stop`] within a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PartStop {
    /// Position in the part in bytes.
    pub(crate) at: usize,
    /// Earlier place: part, position there, length.
    pub(crate) run: Option<(PartKey, u64, u64)>,
}

impl FilePlan {
    /// Returns the plan of the part of `len` bytes from `offset` on, in a file with segments of `segment` bytes.
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

/// Cluster of an earlier part, or the part of it that is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Posted {
    /// Position in the part in bytes.
    pub(crate) at: u64,
    /// Length, grains and kind of the extent.
    pub(crate) piece: ShortPiece,
    /// Decoded length of the whole cluster in bytes.
    pub(crate) full: u32,
    /// Owner of the cluster: part and number of the piece.
    pub(crate) home: (PartKey, u32),
}

/// Clusters of parts, posted when they are encoded.
#[derive(Default)]
pub(crate) struct ClusterBoard {
    posted: Mutex<HashMap<PartKey, Arc<[Posted]>>>,
    more: Condvar,
}

impl ClusterBoard {
    /// Posts the clusters of a part. Later posts of the same part are ignored.
    pub(crate) fn post(&self, key: PartKey, pieces: &[Posted]) {
        let mut posted = self.posted.lock().unwrap_or_else(PoisonError::into_inner);
        posted.entry(key).or_insert_with(|| pieces.into());
        drop(posted);
        self.more.notify_all();
    }

    /// Returns the clusters of a part; waits until they are posted.
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

/// Least saving in bytes of the image for which a cluster is ended early to use others.
const SAVING_MIN: u64 = 4 << 10;
/// Least saving in bytes of the image for a cluster that is used in part.
const PART_SAVING_MIN: u64 = 1 << 10;

/// Selects the clusters in `posted` that hold up to `len` bytes from `from` on, as extents that start at `at` of the
/// later part. Empty if none does, or if the saving is too small.
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

/// Returns true if an index can hold such an extent at position `at`, followed by others. Where clusters start at
/// blocks it must end in a later lcluster, with one more between if its number of blocks is stored.
pub(crate) fn fits(piece: &ShortPiece, at: u64, shape: &SegmentShape) -> bool {
    let block = shape.block as u64;
    let crossed = (at % block + u64::from(piece.len)) / block;
    let enough = crossed >= if piece.grains > 1 { 2 } else { 1 };
    (enough || shape.unaligned()) && (piece.kind != HeadKind::Plain || !piece.partial)
}

impl Posted {
    /// Returns the saving in bytes of the image.
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
        // No cluster starts there; too little is saved; nothing follows.
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
