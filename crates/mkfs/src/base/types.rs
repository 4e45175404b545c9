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
    /// True for a file that is not compressed.
    pub(crate) stored: bool,
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

impl BaseChunks {
    /// Returns false if the chunk table would be long because of holes: one of at least `HOLES_MAX` entries with fewer
    /// than a quarter of them for data.
    pub(super) fn is_dense(&self) -> bool {
        const HOLES_MAX: u64 = 1 << 20;
        let last = self.count.saturating_sub(1);
        let mut edges = if self.tail.is_empty() { 0 } else { last };
        let mut data = 1;
        for (ChunkRun { first, count }, _) in &self.runs {
            let end = first + count;
            edges |= first | if end < self.count { end } else { 0 };
            data += count;
        }
        // Chunks grow as far as the edges of holes allow.
        let entries = self.count >> edges.trailing_zeros().min(31);
        entries < HOLES_MAX || entries / 4 < data
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hole_of_any_size_does_not_make_a_long_table() {
        let chunks = |count: u64, runs: &[(u64, u64)], tail: &[u8]| BaseChunks {
            count,
            runs: (runs.iter())
                .map(|(first, count)| {
                    let (first, count) = (*first, *count);
                    (ChunkRun { first, count }, DataBlock::base(0))
                })
                .collect(),
            tail: tail.to_vec(),
        };
        // A file of 16 GiB without holes, with and without a tail.
        assert!(chunks(1 << 22, &[(0, 1 << 22)], b"").is_dense());
        assert!(chunks((1 << 22) + 1, &[(0, 1 << 22)], b"tail").is_dense());
        assert!(chunks((1 << 22) + 2, &[(0, (1 << 22) + 1)], b"tail").is_dense());
        // Holes between large chunks.
        assert!(chunks(1 << 40, &[(1 << 30, 1 << 30)], b"").is_dense());
        assert!(chunks(1 << 40, &[], b"").is_dense());
        // Holes around a block, and before a tail.
        assert!(!chunks(1 << 48, &[(1, 1)], b"").is_dense());
        assert!(!chunks(1 << 48, &[], b"tail").is_dense());
    }
}
