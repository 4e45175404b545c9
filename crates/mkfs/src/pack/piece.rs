//! Extents of a file before they have an address, and the shape of the segments that they are cut from.

use super::grain::Grain;
use tuff_format::cluster::HeadKind;

/// One extent of a file, before it has an address. What consecutive pieces take is consecutive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShortPiece {
    /// Length in the file. Unit: bytes.
    pub(crate) len: u32,
    /// Grains it takes; 0 for an inline or fragment tail.
    pub(crate) grains: u16,
    /// Stored or compressed.
    pub(crate) kind: HeadKind,
    /// The cluster decodes to more.
    pub(crate) partial: bool,
    /// The cluster is another part's.
    pub(crate) shared: bool,
}

impl ShortPiece {
    /// A piece of its own.
    pub(crate) fn own(len: usize, grains: usize, kind: HeadKind) -> Self {
        Self {
            // Fits: a part is a few MiB, a cluster at most 1 MiB.
            len: len as u32,
            grains: grains as u16,
            kind,
            partial: false,
            shared: false,
        }
    }

    /// Grains that it takes in the part that it belongs to.
    pub(crate) fn own_grains(&self) -> usize {
        if self.shared { 0 } else { self.grains.into() }
    }
}

/// What becomes of the end of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TailPolicy {
    /// It gets blocks like the rest.
    Cluster,
    /// Up to so many encoded bytes go behind the inode.
    Inline(usize),
    /// Up to so many raw bytes go into the packed inode.
    Fragment(usize),
}

/// How to encode.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SegmentShape {
    /// Unit: bytes.
    pub(crate) block: usize,
    /// What clusters are counted in: a block or less.
    pub(crate) grain: Grain,
    /// Largest cluster. Unit: bytes.
    pub(crate) cluster: usize,
    /// For the end of a file.
    pub(crate) tail: TailPolicy,
}

impl SegmentShape {
    /// True if an end of a file of so many bytes takes a block whatever it is encoded to.
    pub(crate) fn stores(&self, len: usize) -> bool {
        self.tail == TailPolicy::Cluster && len <= self.grain.size()
    }

    /// True if clusters begin anywhere.
    pub(crate) fn unaligned(&self) -> bool {
        self.grain.size() < self.block
    }
}
