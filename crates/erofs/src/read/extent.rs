//! Extents of a file's data, and the maps that yield them.

use super::fetch::{Bytes, Space};
use std::sync::Arc;
use tuff_format::cluster::{self, Coding};
use tuff_format::{BlockBits, DeviceId, chunk};

/// Contiguous range of a file's bytes and its location. Self-contained: fetching and decoding need no inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// File offset. Unit: bytes.
    pub offset: u64,
    /// Length, at least 1. Unit: bytes.
    pub len: u64,
    /// Storage location of the bytes.
    pub location: Location,
}

impl Extent {
    /// Returns the file offset at which the extent ends. Unit: bytes.
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(self.len)
    }
}

/// Storage location of an extent's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Location {
    /// Not stored; reads as zeros.
    Hole,
    /// Stored uncompressed on a device.
    Raw {
        /// Device; the primary device stands for the unified address space.
        device: DeviceId,
        /// Position on the device. Unit: bytes.
        pos: u64,
    },
    /// Stored in a physical cluster.
    Cluster(Cluster),
    /// Stored inline, after the inode.
    Inline {
        /// Address space that holds the inode.
        space: Space,
        /// Position in `space`. Unit: bytes.
        pos: u64,
        /// Stored length, at most one block. Unit: bytes.
        len: u32,
        /// Encoding of the inline bytes.
        coding: Coding,
    },
    /// Stored in the data of the packed inode.
    Fragment {
        /// Offset in the data of the packed inode. Unit: bytes.
        offset: u64,
    },
}

/// Physical cluster: a range of the unified address space that decodes to an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Cluster {
    /// Position in the unified address space. Unit: bytes.
    pub pos: u64,
    /// Stored length, at most 1 MiB. Unit: bytes.
    pub len: u32,
    /// Encoding of the cluster.
    pub coding: ClusterCoding,
    /// True if the extent is only a prefix of what the cluster decodes to; false if it is all of it.
    pub partial: bool,
}

/// Counterpart of [`Coding`] that implements `Ord` and `Hash`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ClusterCoding {
    /// Stored uncompressed, at the start of the cluster.
    Stored,
    /// Stored uncompressed and rotated: each byte is at its file offset modulo the block size.
    Interlaced,
    /// Compressed with this algorithm id, 0 to 3.
    Compressed(u8),
}

impl From<Coding> for ClusterCoding {
    fn from(coding: Coding) -> Self {
        match coding {
            Coding::Stored => Self::Stored,
            Coding::Interlaced => Self::Interlaced,
            Coding::Compressed(id) => Self::Compressed(id),
        }
    }
}

impl From<ClusterCoding> for Coding {
    fn from(coding: ClusterCoding) -> Self {
        match coding {
            ClusterCoding::Stored => Self::Stored,
            ClusterCoding::Interlaced => Self::Interlaced,
            ClusterCoding::Compressed(id) => Self::Compressed(id),
        }
    }
}

/// Mapping from file offsets to extents, with the table or index loaded. Cheap to clone.
#[derive(Clone)]
pub(crate) enum FileMap {
    /// The inode has no data.
    Empty,
    /// Flat layout: one run of blocks or a hole, optionally followed by an inline tail.
    Flat {
        size: u64,
        /// Position of the run of blocks. `None` for a hole.
        start: Option<u64>,
        /// Bytes stored in blocks; the rest is the inline tail.
        in_blocks: u64,
        space: Space,
        tail_pos: u64,
    },
    Chunks(Arc<Chunks>),
    Clusters(Arc<Clusters>),
}

/// Chunk table of a chunk-based inode.
pub(crate) struct Chunks {
    pub(super) size: u64,
    pub(super) format: chunk::Format,
    pub(super) bits: BlockBits,
    pub(super) table: Bytes,
}

/// Map of a compressed inode, with its index.
pub(crate) struct Clusters {
    pub(crate) map: cluster::Map,
    pub(crate) index: Bytes,
    pub(super) space: Space,
}

/// Key of a decoded cluster in the cache: position, stored length and coding.
pub(crate) type ClusterKey = (u64, u32, ClusterCoding);
