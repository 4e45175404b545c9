//! Places of the data of a base's files, in terms of the new image.

use crate::pack::address::{DataBlock, GrainAddr};
use crate::pack::piece::ShortPiece;
use crate::pack::shared_clusters::Posted;
use crate::pack::sparse::ChunkRun;
use tuff_format::Nid;

/// File of a base: the base's number and the inode there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BaseInode {
    pub(crate) base: u16,
    pub(crate) nid: Nid,
}

/// Position of the first byte of a file's data, in bytes. Data in the packed inode follows all else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum DataPosition {
    /// In the unified address space of the base.
    Device(u64),
    /// In the packed inode of the base.
    Packed(u64),
}

/// File of a base that has data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BaseFile {
    /// Position of its data, which orders the files of a base.
    pub(super) position: DataPosition,
    pub(crate) inode: BaseInode,
    /// Size of the file in bytes.
    pub(crate) size: u64,
    /// True for a compressed file that is not a fragment as a whole.
    pub(crate) clusters: bool,
}

/// Clusters of a file of a base.
pub(crate) struct BaseClusters {
    /// Algorithm, unless all clusters are stored.
    pub(crate) algorithm: Option<u8>,
    /// Clusters from the start of the file, back to back. Unusable ones have no grains.
    pub(crate) posted: Vec<Posted>,
    /// First grain of each.
    pub(crate) places: Vec<GrainAddr>,
}

impl BaseClusters {
    /// Returns the position in bytes of the first usable cluster at `at` or later.
    pub(crate) fn begin(&self, at: u64) -> Option<u64> {
        let from = self.posted.partition_point(|p| p.at < at);
        let mut rest = self.posted[from..].iter();
        rest.find(|p| p.piece.grains > 0).map(|p| p.at)
    }

    /// Returns the number of bytes in clusters.
    pub(crate) fn len(&self) -> u64 {
        self.posted
            .last()
            .map_or(0, |p| p.at + u64::from(p.piece.len))
    }
}

/// Piece in a cluster of a base: its first grain and its form.
pub(crate) type BasePiece = (GrainAddr, ShortPiece);

/// Places of a file's data.
pub(crate) enum BaseData {
    /// Consecutive blocks of the new image, if any, and an inline tail.
    Flat(Option<DataBlock>, Vec<u8>),
    /// Chunks, with holes between them.
    Chunks(BaseChunks),
    /// Compressed clusters and a tail.
    Encoded {
        algorithm: u8,
        pieces: Vec<BasePiece>,
        tail: BaseTail,
    },
    /// The whole file is in the packed inode.
    Fragment(BaseFragment),
}

/// Chunks of one block that hold data.
pub(crate) struct BaseChunks {
    /// Number of chunks in the file.
    pub(crate) count: u64,
    /// Runs of chunks in ascending order, each with its first block. All blocks of a run are on one device.
    pub(crate) runs: Vec<(ChunkRun, DataBlock)>,
    /// Inline tail of the file in the base, which becomes its last chunk. Empty if a run holds the last chunk.
    pub(crate) tail: Vec<u8>,
}

/// Place of the last piece of a compressed file.
pub(crate) enum BaseTail {
    Cluster,
    Inline(Vec<u8>),
    Fragment(BaseFragment),
}

/// Part of a packed inode.
pub(crate) struct BaseFragment {
    /// Position in bytes, counted over the packed inodes of all bases.
    pub(crate) offset: u64,
    /// Pieces that hold the fragment, each with its position in bytes.
    pub(crate) pieces: Vec<(u64, BasePiece)>,
}
