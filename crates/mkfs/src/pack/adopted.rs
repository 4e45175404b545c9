//! Fragments of bases that become part of the new packed inode.

use super::address::{FragmentAddr, FragmentLocation};
use super::data::{FileData, Run, append_runs};
use super::packed::Packed;
use crate::base::{BaseFragment, BasePiece};
use std::collections::BTreeMap;

/// Pieces of bases' packed inodes that files refer to, by position there.
#[derive(Default)]
pub(super) struct AdoptedFragments {
    pieces: BTreeMap<u64, BasePiece>,
    /// The base's packed inode is that of the new image.
    in_place: bool,
}

impl AdoptedFragments {
    /// Returns true if no file refers to a base's packed inode.
    pub(super) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Keeps the packed inode of the only base: fragments stay at their positions.
    pub(super) fn stay(&mut self) {
        self.in_place = true;
    }

    pub(super) fn add(&mut self, fragment: BaseFragment) -> FragmentAddr {
        if self.in_place {
            return FragmentAddr::new(FragmentLocation::Start(fragment.offset));
        }
        self.pieces.extend(fragment.pieces);
        FragmentAddr::new(FragmentLocation::Base(fragment.offset))
    }

    /// Appends all pieces to the packed inode and stores their new positions in the files. `algorithms` are those
    /// of the packed inode, the first one in bits 0–3.
    pub(super) fn append(self, packed: &mut Packed, algorithms: u8) {
        if self.is_empty() {
            return;
        }
        // Old positions in ascending order, each with the new one.
        let mut places: Vec<(u64, u64)> = Vec::with_capacity(self.pieces.len());
        let (mut pieces, mut grains) = (Vec::new(), Vec::new());
        let mut at = packed.packed_size;
        for (from, (place, piece)) in self.pieces {
            places.push((from, at));
            at += u64::from(piece.len);
            grains.push(place);
            pieces.push(piece);
        }
        packed.packed_size = at;
        append_runs(&mut packed.packed, Run::group(pieces, &grains), algorithms);
        let place = |fragment: &mut FragmentAddr| {
            if let FragmentLocation::Base(from) = fragment.location() {
                // The pieces were added together with the fragment.
                let (was, is) = places[places.partition_point(|(was, _)| *was <= from) - 1];
                *fragment = FragmentAddr::new(FragmentLocation::Start(is + (from - was)));
            }
        };
        packed
            .files
            .iter_mut()
            .filter_map(FileData::fragment)
            .for_each(place);
    }
}
