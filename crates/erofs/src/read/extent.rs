//! Extents of a file's data, and the maps that they come from.

use super::fetch::{Bytes, Space};
use std::sync::Arc;
use tuff_format::cluster::{self, Coding};
use tuff_format::{BlockBits, chunk};

/// A run of a file's bytes and where they come from. Says all that fetching and decoding need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Position in the file. Unit: bytes.
    pub offset: u64,
    /// Unit: bytes, at least 1.
    pub len: u64,
    /// Where the bytes are.
    pub location: Location,
}

impl Extent {
    /// Position behind the extent. Unit: bytes.
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(self.len)
    }
}

/// Where an extent's bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Location {
    /// Nowhere: zeros.
    Hole,
    /// On a device, as they are.
    Raw {
        /// Slot of the device table; 0 for the unified address space.
        device: u16,
        /// Unit: bytes.
        pos: u64,
    },
    /// In a cluster.
    Cluster(Cluster),
    /// Behind the inode.
    Inline {
        /// Where the inode is.
        space: Space,
        /// Unit: bytes.
        pos: u64,
        /// Length there. Unit: bytes, at most a block.
        len: u32,
        /// How they are encoded.
        coding: Coding,
    },
    /// In the packed inode's data.
    Fragment {
        /// Position there. Unit: bytes.
        offset: u64,
    },
}

/// A run of bytes in the unified address space that decodes to an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Cluster {
    /// Unit: bytes.
    pub pos: u64,
    /// Unit: bytes, at most 1 MiB.
    pub len: u32,
    /// How it is encoded.
    pub coding: ClusterCoding,
    /// The extent is the start of what the cluster decodes to, and not, as otherwise, all of it.
    pub partial: bool,
}

/// [`Coding`] with an order, for sorting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ClusterCoding {
    /// As they are.
    Stored,
    /// As they are, rotated.
    Interlaced,
    /// Compressed with this algorithm, 0 to 3.
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

/// How an inode's data is found, with its table or index loaded. Cheap to clone.
#[derive(Clone)]
pub(crate) enum FileMap {
    /// No data.
    Empty,
    /// One run of blocks, or zeros, and perhaps a tail behind the inode.
    Flat {
        size: u64,
        /// `None`: zeros.
        start: Option<u64>,
        /// Bytes in blocks; the rest is the tail.
        in_blocks: u64,
        space: Space,
        tail_pos: u64,
    },
    Chunks(Arc<Chunks>),
    Clusters(Arc<Clusters>),
}

/// A chunk table.
pub(crate) struct Chunks {
    pub(super) size: u64,
    pub(super) format: chunk::Format,
    pub(super) bits: BlockBits,
    pub(super) table: Bytes,
}

/// A map of clusters with its index.
pub(crate) struct Clusters {
    pub(crate) map: cluster::Map,
    pub(crate) index: Bytes,
    pub(super) space: Space,
}

/// A decoded cluster's name in the cache: position, length, coding.
pub(crate) type ClusterKey = (u64, u32, ClusterCoding);
