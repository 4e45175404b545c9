//! Extents of a file before they have an address, and the shape of the segments that they are cut from.

use super::grain::Grain;
use tuff_format::cluster::HeadKind;

/// Extent of a file before it has an address. Clusters of consecutive pieces are consecutive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShortPiece {
    /// Length in the file in bytes.
    pub(crate) len: u32,
    /// Length of the cluster in grains. 0 for an inline tail or a fragment.
    pub(crate) grains: u16,
    /// Whether the cluster is stored or compressed.
    pub(crate) kind: HeadKind,
    /// The cluster decodes to more bytes.
    pub(crate) partial: bool,
    /// The cluster belongs to another part.
    pub(crate) shared: bool,
}

impl ShortPiece {
    /// Returns a piece with a cluster of its own.
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

    /// Returns the grains that the piece adds to its part.
    pub(crate) fn own_grains(&self) -> usize {
        if self.shared { 0 } else { self.grains.into() }
    }
}

/// Treatment of the tail of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TailPolicy {
    /// The tail gets blocks like the rest.
    Cluster,
    /// Up to this number of encoded bytes become an inline tail.
    Inline(usize),
    /// Up to this number of raw bytes become a fragment.
    Fragment(usize),
}

/// Parameters of encoding a segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SegmentShape {
    /// Block size in bytes.
    pub(crate) block: usize,
    /// Unit of cluster addresses: a block or less.
    pub(crate) grain: Grain,
    /// Largest cluster in bytes.
    pub(crate) cluster: usize,
    /// Treatment of the tail of a file.
    pub(crate) tail: TailPolicy,
}

impl SegmentShape {
    /// Returns true if a tail of `len` bytes takes one block in any encoding.
    pub(crate) fn stores(&self, len: usize) -> bool {
        self.tail == TailPolicy::Cluster && len <= self.grain.size()
    }

    /// Returns true if clusters start anywhere.
    pub(crate) fn unaligned(&self) -> bool {
        self.grain.size() < self.block
    }
}
