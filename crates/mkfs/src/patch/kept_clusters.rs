//! Clusters that an edited file of a patched image keeps.
//!
//! ```text
//! old clusters   │ A      │ B      │ C      │ D      │ tail in the packed inode
//! edits                       x
//! FULL index     │ A      │ B   │ n│ C      │ D      │ tail      B in part, then a new cluster
//! COMPACT index  │ A      │ n      │ C      │ D      │ tail      no part of a cluster
//! ```
//!
//! The new index differs from the old one where clusters are new, so that the inode can be overwritten. A COMPACT index
//! has one address for each pack of 2 or 16 blocks of the file, so the clusters that start in a pack are consecutive:
//! where one of them is new, all are. The last new cluster before a kept one starts before the pack of that: where an old
//! cluster starts that has no edits, or in the block before the pack.

use crate::Result;
use crate::base::{BaseClusters, BaseData, BaseInode, BasePiece, BaseTail, Bases};
use crate::pack::address::GrainAddr;
use crate::pack::files::TreeFiles;
use crate::pack::segment_size;
use crate::pack::shared_clusters::{FilePlan, Owner, PartKey, PlannedRun, Posted, Stop};
use crate::patch::unchanged::Unchanged;
use crate::tree::InodeId;
use hashbrown::HashMap;
use std::ops::Range;
use tuff_format::cluster::HeadKind;
use tuff_format::cluster::compact::Geometry;
use tuff_format::cluster::write::header_pos;
use tuff_format::inode::Layout;

/// Clusters that a file keeps.
pub(crate) struct KeptClusters {
    /// Ranges in old clusters.
    pub(crate) plan: FilePlan,
    /// Number that identifies the old file.
    pub(crate) number: u32,
    /// Old clusters.
    pub(crate) clusters: BaseClusters,
    /// Tail that stays where it is, with its position in the file. Unit: bytes.
    pub(crate) tail: Option<(u64, BaseTail)>,
}

/// Form of the new file.
struct NewForm {
    /// Size in bytes, which is that of the old file.
    size: u64,
    /// Algorithm of new clusters.
    algorithm: u8,
    /// Length in bytes of the segments that are encoded separately.
    segment: u64,
    /// Block size in bytes.
    block: u64,
    /// Layout of the COMPACT index, if it has one.
    compact: Option<Geometry>,
}

/// Selects the clusters that edited files of a patched image keep.
pub(crate) fn keep_clusters(
    files: &TreeFiles<'_>,
    bases: &Bases,
    unchanged: &Unchanged,
    order: &[InodeId],
) -> Result<HashMap<InodeId, KeptClusters>> {
    let mut all = HashMap::new();
    let bits = files.options.block;
    for inode in order {
        let Some((place, edits)) = unchanged.edited(*inode) else {
            continue;
        };
        let (size, policy) = (files.tree.size(*inode), files.policy(*inode).1);
        let old = BaseInode {
            base: 0,
            nid: place.inode.nid(),
        };
        let (Some(spec), Some(data)) = (policy.spec, bases.patched_data(old)?) else {
            continue;
        };
        let header = header_pos((place.inode.raw().len() + place.body.len()) as u64);
        let blocks = bits.count(size);
        let geometry = Geometry::new(header + 8, blocks, bits.get() <= 12, bits.get(), false);
        let is_compact = place.inode.layout() == Layout::CompressedCompact;
        let form = NewForm {
            size,
            algorithm: spec.method.algorithm() as u8,
            segment: segment_size(policy),
            block: bits.size(),
            compact: geometry.ok().filter(|_| is_compact),
        };
        // Files of the deduplication are numbered from 0.
        let number = u32::MAX - all.len() as u32;
        if let Some(kept) = keep(data, edits, number, &form) {
            all.insert(*inode, kept);
        }
    }
    Ok(all)
}

/// Selects the clusters of an old file that a new file with these `edits` keeps. `number` identifies the old file.
fn keep(data: BaseData, edits: &[Range<u64>], number: u32, form: &NewForm) -> Option<KeptClusters> {
    let BaseData::Encoded {
        algorithm,
        mut pieces,
        tail,
    } = data
    else {
        return None;
    };
    if algorithm != form.algorithm {
        return None;
    }
    if !matches!(tail, BaseTail::Cluster) {
        pieces.pop();
    }
    let (places, posted) = posted(pieces, number);
    let tail_at = posted.last().map_or(0, end);
    let mut selection = Selection {
        kept: Vec::new(),
        tail: false,
        posted: &posted,
        edits,
        number,
        form,
    };
    selection.select();
    if !matches!(tail, BaseTail::Cluster) {
        // A tail that ends in another segment is read with that.
        let in_segment = tail_at / form.segment == (form.size - 1) / form.segment;
        selection.tail = in_segment && !selection.is_edited(tail_at..form.size);
    }
    if form.compact.is_some() {
        selection.keep_whole_packs();
    }
    selection.tail &= selection.kept.last() == Some(&true);
    let plan = FilePlan {
        stops: selection.stops(),
        owner: false,
    };
    if plan.stops.is_empty() {
        return None;
    }
    let tail = selection.tail.then_some((tail_at, tail));
    Some(KeptClusters {
        plan,
        number,
        clusters: BaseClusters {
            algorithm: Some(algorithm),
            posted,
            places,
        },
        tail,
    })
}

/// Returns the first grains of clusters, and the clusters.
fn posted(pieces: Vec<BasePiece>, number: u32) -> (Vec<GrainAddr>, Vec<Posted>) {
    let mut at = 0;
    let post = |(i, (place, piece)): (usize, BasePiece)| {
        let start = at;
        at += u64::from(piece.len);
        let posted = Posted {
            at: start,
            piece,
            full: piece.len,
            // Fits: clusters of a file are counted in 32 bits.
            home: (PartKey::Base(number), i as u32),
        };
        (place, posted)
    };
    pieces.into_iter().enumerate().map(post).unzip()
}

/// Returns the end of a cluster in the file. Unit: bytes.
fn end(posted: &Posted) -> u64 {
    posted.at + u64::from(posted.piece.len)
}

struct Selection<'a> {
    /// Clusters that are kept as a whole.
    kept: Vec<bool>,
    /// The tail that is no cluster is kept.
    tail: bool,
    posted: &'a [Posted],
    edits: &'a [Range<u64>],
    number: u32,
    form: &'a NewForm,
}

impl Selection<'_> {
    /// Returns the first edited byte of a range.
    fn first_edit(&self, range: Range<u64>) -> Option<u64> {
        let i = self.edits.partition_point(|edit| edit.end <= range.start);
        let edit = self.edits.get(i).filter(|edit| edit.start < range.end)?;
        Some(edit.start.max(range.start))
    }

    fn is_edited(&self, range: Range<u64>) -> bool {
        self.first_edit(range).is_some()
    }

    /// Keeps the clusters without edits.
    fn select(&mut self) {
        let segment = self.form.segment;
        let keeps = |p: &Posted| {
            // A cluster that is used in two segments is used in parts.
            let whole = p.at / segment == (end(p) - 1) / segment && !p.piece.partial;
            p.piece.grains > 0
                && (whole || self.form.compact.is_none())
                && !self.is_edited(p.at..end(p))
        };
        self.kept = self.posted.iter().map(keeps).collect();
    }

    /// Returns the lclusters in the pack of a position. Unit: bytes.
    fn pack(&self, at: u64) -> Range<u64> {
        let block = self.form.block;
        let pack = self.form.compact.and_then(|g| g.pack(at / block).ok());
        pack.map_or(at..at + 1, |pack| pack.start * block..pack.end * block)
    }

    /// Drops clusters that start in the same pack as a new one.
    fn keep_whole_packs(&mut self) {
        let tail_at = self.posted.last().map_or(0, end);
        loop {
            let mut packs: Vec<Range<u64>> = Vec::new();
            let new = self
                .posted
                .iter()
                .zip(&self.kept)
                .filter(|(_, kept)| !**kept);
            for at in new
                .map(|(p, _)| p.at)
                .chain((!self.tail).then_some(tail_at))
            {
                // The end of the file is in no pack.
                if at < self.form.size && packs.last().is_none_or(|last| !last.contains(&at)) {
                    packs.push(self.pack(at));
                }
            }
            let mut dropped = false;
            for pack in packs {
                let from = self.posted.partition_point(|p| p.at < pack.start);
                let to = self.posted.partition_point(|p| p.at < pack.end);
                for kept in &mut self.kept[from..to] {
                    dropped |= std::mem::replace(kept, false);
                }
            }
            for i in 1..self.kept.len() {
                let is_first = self.kept[i] && !self.kept[i - 1];
                if is_first && self.stop_before(i).is_none() {
                    (self.kept[i], dropped) = (false, true);
                }
            }
            if self.tail && self.kept.last() != Some(&true) {
                (self.tail, dropped) = (false, true);
            }
            if !dropped {
                return;
            }
        }
    }

    /// Returns the start of the last new cluster before the kept cluster `i`. It is in an earlier pack, and the cluster
    /// has room for all up to the kept one. `None` if that is unlikely.
    fn stop_before(&self, i: usize) -> Option<u64> {
        let (last, start) = (&self.posted[i - 1], self.posted[i].at);
        if last.piece.grains > 0 && !self.is_edited(last.at..start) {
            return Some(last.at);
        }
        let early = self.pack(start).start.saturating_sub(self.form.block);
        let fits = early > last.at && (start - early) * 4 <= (start - last.at) * 3;
        fits.then_some(early)
    }

    /// Returns the stops of the new file in ascending order.
    fn stops(&self) -> Vec<Stop> {
        let mut stops = Vec::new();
        // End of what is kept, and of the runs so far.
        let (mut i, mut done) = (0, 0);
        while i < self.posted.len() {
            let first = i;
            while self.kept.get(i) == Some(&true) {
                i += 1;
            }
            let start = self.posted[first].at;
            let mut stop = match first < i {
                true => end(&self.posted[i - 1]),
                false => start,
            };
            if self.form.compact.is_some() {
                let early = match first {
                    1.. if first < i => self.stop_before(first),
                    _ => None,
                };
                if let Some(at) = early.filter(|at| *at > done) {
                    stops.push(Stop { at, run: None });
                }
            } else if let Some(p) = self.posted.get(i) {
                stop = self.in_part(p).unwrap_or(stop);
            }
            if stop > start {
                self.add_run(start, stop, &mut stops);
                done = stop;
            }
            i = i.max(first) + 1;
        }
        stops
    }

    /// Returns the end of the part of an edited cluster that is used. `None` if the part is too short.
    fn in_part(&self, p: &Posted) -> Option<u64> {
        let usable = p.piece.grains > 0 && p.piece.kind != HeadKind::Plain;
        let edit = self.first_edit(p.at..end(p)).filter(|_| usable)?;
        (edit >= p.at + self.form.block).then_some(edit)
    }

    /// Adds a run, split at the segments.
    fn add_run(&self, start: u64, stop: u64, stops: &mut Vec<Stop>) {
        let mut at = start;
        while at < stop {
            let to = stop.min((at / self.form.segment + 1) * self.form.segment);
            let run = PlannedRun {
                owner: Owner::Base(self.number),
                at,
                len: to - at,
            };
            stops.push(Stop { at, run: Some(run) });
            // A run starts with a cluster.
            let next = self.posted.partition_point(|p| p.at < to);
            at = self.posted.get(next).map_or(stop, |p| p.at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::BaseFragment;
    use crate::pack::piece::ShortPiece;

    const BLOCK: u64 = 4096;

    /// Returns a file with clusters of this number of blocks, each of two blocks in the image, and a fragment.
    fn data(lens: &[u64]) -> BaseData {
        let piece = |len: &u64| ShortPiece::own((len * BLOCK) as usize, 2, HeadKind::Head1);
        let mut pieces: Vec<BasePiece> = lens
            .iter()
            .map(|len| (GrainAddr::base(7), piece(len)))
            .collect();
        pieces.push((GrainAddr::NONE, ShortPiece::own(100, 0, HeadKind::Head1)));
        BaseData::Encoded {
            algorithm: 0,
            pieces,
            tail: BaseTail::Fragment(BaseFragment {
                offset: 5,
                pieces: Vec::new(),
            }),
        }
    }

    /// Returns the stops in blocks, with the lengths of runs, and true if the tail is kept.
    fn kept(lens: &[u64], edits: &[u64], compact: bool) -> Option<(Vec<(u64, u64)>, bool)> {
        let size = lens.iter().sum::<u64>() * BLOCK + 100;
        let geometry = Geometry::new(0, size.div_ceil(BLOCK), true, 12, true).unwrap();
        let form = NewForm {
            size,
            algorithm: 0,
            segment: 8 << 20,
            block: BLOCK,
            compact: compact.then_some(geometry),
        };
        let edits: Vec<_> = (edits.iter().map(|at| at * BLOCK..(at + 1) * BLOCK)).collect();
        let kept = keep(data(lens), &edits, 9, &form)?;
        let stops = (kept.plan.stops.iter())
            .map(|stop| (stop.at / BLOCK, stop.run.map_or(0, |run| run.len / BLOCK)));
        Some((stops.collect(), kept.tail.is_some()))
    }

    #[test]
    fn a_full_index_keeps_what_is_before_an_edit() {
        let lens = [10, 10, 10, 10];
        assert_eq!(kept(&lens, &[], false), Some((vec![(0, 40)], true)));
        assert_eq!(
            kept(&lens, &[24], false),
            Some((vec![(0, 24), (30, 10)], true))
        );
        assert_eq!(
            kept(&lens, &[3, 38], false),
            Some((vec![(0, 3), (10, 28)], false))
        );
        // The first cluster has the edit at its start, the last one is before the tail.
        assert_eq!(kept(&lens, &[0, 30], false), Some((vec![(10, 20)], false)));
        assert_eq!(kept(&lens, &[0, 10, 20, 30], false), None);
    }

    #[test]
    fn a_compact_index_keeps_whole_packs() {
        // Packs of 16 blocks.
        let lens = [10, 10, 10, 20, 30, 16];
        assert_eq!(kept(&lens, &[], true), Some((vec![(0, 96)], true)));
        // Both clusters that start in the first pack are new. The second one is new as before.
        let found = kept(&lens, &[2], true);
        assert_eq!(found, Some((vec![(10, 0), (20, 76)], true)));
        // The last new cluster starts before the pack of the cluster at 50.
        let found = kept(&[10, 10, 30, 30, 16], &[21], true);
        let expected = vec![(0, 20), (47, 0), (50, 46)];
        assert_eq!(found, Some((expected, true)));
        // The part from 15 to 20 may be too long for a cluster, so the next two clusters are new as well.
        let found = kept(&[14, 6, 10, 20, 30, 16], &[15], true);
        assert_eq!(found, Some((vec![(30, 0), (50, 46)], true)));
        // The tail is kept only after a kept cluster.
        let found = kept(&lens, &[90], true);
        assert_eq!(found, Some((vec![(0, 80)], false)));
    }
}
