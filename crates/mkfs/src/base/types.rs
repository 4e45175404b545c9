//! Places of the data of a base's files, in terms of the new image.

use crate::pack::address::{DataBlock, GrainAddr};
use crate::pack::piece::ShortPiece;
use crate::pack::shared_clusters::Posted;
use crate::pack::sparse::ChunkRun;
use tuff_format::Nid;

/// A file of a base: of which one, and its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BaseInode {
    pub(crate) base: u16,
    pub(crate) nid: Nid,
}

/// Position of the first byte of a file's data, in bytes. Data in the packed inode follows all else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum DataPosition {
    /// In the unified address space of the base.
    Device(u64),
    /// In the packed inode of the base.
    Packed(u64),
}

/// A file of a base that has data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BaseFile {
    /// Where its data begins, among that of others of its base.
    pub(super) position: DataPosition,
    pub(crate) inode: BaseInode,
    /// Unit: bytes.
    pub(crate) size: u64,
    /// It is compressed, and not as a whole in the packed inode.
    pub(crate) clusters: bool,
}

/// The clusters of a file of a base.
pub(crate) struct BaseClusters {
    /// Number of their algorithm, if they are not all stored.
    pub(crate) algorithm: Option<u8>,
    /// Back to back from the file's start on. Those that cannot be used have no grains.
    pub(crate) posted: Vec<Posted>,
    /// First grain of each.
    pub(crate) places: Vec<GrainAddr>,
}

impl BaseClusters {
    /// Position of the first cluster that may be used and begins at `at` or later. Unit: bytes.
    pub(crate) fn begin(&self, at: u64) -> Option<u64> {
        let from = self.posted.partition_point(|p| p.at < at);
        let mut rest = self.posted[from..].iter();
        rest.find(|p| p.piece.grains > 0).map(|p| p.at)
    }

    /// Length of the data in clusters. Unit: bytes.
    pub(crate) fn len(&self) -> u64 {
        self.posted
            .last()
            .map_or(0, |p| p.at + u64::from(p.piece.len))
    }
}

/// A piece in a cluster of a base: its first grain and its form.
pub(crate) type BasePiece = (GrainAddr, ShortPiece);

/// Where a file's data is.
pub(crate) enum BaseData {
    /// In consecutive blocks from this one on, if there are any, and behind the inode.
    Flat(Option<DataBlock>, Vec<u8>),
    /// In chunks, with holes between them.
    Chunks(BaseChunks),
    /// In clusters.
    Encoded {
        algorithm: u8,
        pieces: Vec<BasePiece>,
        tail: BaseTail,
    },
    /// In the packed inode as a whole.
    Fragment(BaseFragment),
}

/// Runs of chunks of a block that hold data.
pub(crate) struct BaseChunks {
    /// Chunks of the file.
    pub(crate) count: u64,
    /// Ascending, each with its first block.
    pub(crate) runs: Vec<(ChunkRun, DataBlock)>,
}

/// Where the last piece of a compressed file is.
pub(crate) enum BaseTail {
    Cluster,
    Inline(Vec<u8>),
    Fragment(BaseFragment),
}

/// A part of a packed inode.
pub(crate) struct BaseFragment {
    /// Position in bytes, counted over the packed inodes of all bases.
    pub(crate) offset: u64,
    /// The pieces that hold it, each with its position. Unit: bytes.
    pub(crate) pieces: Vec<(u64, BasePiece)>,
}
