//! Files whose data a base has: nothing of them is encoded, and nothing is written but ends behind inodes.

use super::data::{FileData, FileTail, Run, Table, append_runs};
use super::shared_clusters::PartKey;
use super::{Packed, Packer};
use crate::Result;
use crate::base::{BaseClusters, BaseData, BaseFragment, BasePiece, BaseTail, IN_BASE_PACKED};
use crate::tree::InodeId;
use std::collections::BTreeMap;

/// Pieces of bases' packed inodes that files refer to, by position there.
#[derive(Default)]
pub(super) struct AdoptedFragments(BTreeMap<u64, BasePiece>);

impl AdoptedFragments {
    /// True if there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn add(&mut self, fragment: BaseFragment) -> u64 {
        self.0.extend(fragment.pieces);
        fragment.offset | IN_BASE_PACKED
    }

    /// Appends all pieces to the packed inode, and puts their places there into the files. `algorithm` is the packed
    /// inode's.
    pub(super) fn append(self, packed: &mut Packed, algorithm: u8) {
        if self.is_empty() {
            return;
        }
        // Where they were, ascending, and where they come to lie.
        let mut places: Vec<(u64, u64)> = Vec::with_capacity(self.0.len());
        let (mut pieces, mut grains) = (Vec::new(), Vec::new());
        let mut at = packed.packed_size;
        for (from, (place, piece)) in self.0 {
            places.push((from, at));
            at += u64::from(piece.len);
            grains.push(place);
            pieces.push(piece);
        }
        packed.packed_size = at;
        append_runs(&mut packed.packed, Run::of(pieces, &grains), algorithm);
        let place = |offset: &mut u64| {
            if *offset & IN_BASE_PACKED != 0 {
                let from = *offset & !IN_BASE_PACKED;
                // Its pieces were added together with it.
                let (was, is) = places[places.partition_point(|(was, _)| *was <= from) - 1];
                *offset = is + (from - was);
            }
        };
        packed
            .files
            .iter_mut()
            .filter_map(FileData::fragment)
            .for_each(place);
    }
}

impl Packer<'_> {
    /// Files may use these clusters of a base, those of the file with this number.
    pub(crate) fn add_clusters(&mut self, number: u32, clusters: BaseClusters) {
        let key = PartKey::Base(number);
        self.pool.board().post(key, &clusters.posted);
        self.shared.insert(key, clusters.places);
    }

    /// `file` has `size` bytes of data, not 0, that a base has. `sum` is the content's, if sums are taken.
    pub(crate) fn add_base_file(
        &mut self,
        file: InodeId,
        size: u64,
        data: BaseData,
        sum: Option<u64>,
    ) -> Result<()> {
        let data = match data {
            BaseData::Flat(block, tail) => FileData::Flat {
                block: block.unwrap_or(0),
                tail: (!tail.is_empty())
                    .then(|| self.result.spill.put(&tail))
                    .transpose()?,
            },
            BaseData::Chunks(chunks) => FileData::Table(Box::new(Table::of_base(chunks))),
            BaseData::Fragment(fragment) => FileData::WholeFragment {
                offset: self.adopted.add(fragment),
            },
            BaseData::Encoded {
                algorithm,
                pieces,
                tail,
            } => {
                let tail = match tail {
                    BaseTail::Cluster => FileTail::Cluster,
                    BaseTail::Inline(bytes) => FileTail::Inline(self.result.spill.put(&bytes)?),
                    BaseTail::Fragment(fragment) => FileTail::Fragment(self.adopted.add(fragment)),
                };
                let (places, pieces): (Vec<u32>, Vec<_>) = pieces.into_iter().unzip();
                FileData::encoded(Run::of(pieces, &places), tail, algorithm)
            }
        };
        self.tables += data.footprint();
        if let Some(sum) = sum {
            // One part, however long it is.
            let sums = &mut self.result.sums;
            sums.add(file, true, usize::try_from(size).unwrap_or(usize::MAX), sum);
        }
        self.result.stats.base_files += 1;
        self.result.stats.base_bytes += size;
        self.set(file, data);
        Ok(())
    }

    /// Number of the packed inode's algorithm.
    pub(super) fn packed_algorithm(&self) -> u8 {
        let spec = self.options.packed.spec;
        spec.map_or(0, |spec| spec.method.algorithm() as u8)
    }
}
