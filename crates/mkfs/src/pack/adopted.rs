//! Fragments of bases that become part of the new packed inode.

use super::address::{FragmentAddr, FragmentLocation};
use super::data::{FileData, Run, append_runs};
use super::packed::Packed;
use crate::base::{BaseFragment, BasePiece};
use std::collections::BTreeMap;

/// Pieces of bases' packed inodes that files refer to, by position there.
#[derive(Default)]
pub(super) struct AdoptedFragments(BTreeMap<u64, BasePiece>);

impl AdoptedFragments {
    /// Returns true if no file refers to a base's packed inode.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn add(&mut self, fragment: BaseFragment) -> FragmentAddr {
        self.0.extend(fragment.pieces);
        FragmentAddr::new(FragmentLocation::Base(fragment.offset))
    }

    /// Appends all pieces to the packed inode and stores their new positions in the files. `algorithm` is that of the
    /// packed inode.
    pub(super) fn append(self, packed: &mut Packed, algorithm: u8) {
        if self.is_empty() {
            return;
        }
        // Old positions in ascending order, each with the new one.
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
