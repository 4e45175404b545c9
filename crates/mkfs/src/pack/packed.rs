//! Result of packing: places of all data.

use super::address::GrainAddr;
use super::checksums::ContentSums;
use super::data::{self, FileData, Run};
use crate::spill::Spill;
use crate::stats::Stats;
use crate::{Error, Result};

/// All data, placed.
pub(crate) struct Packed {
    /// By inode.
    pub(crate) files: Vec<FileData>,
    /// Tails.
    pub(crate) spill: Spill,
    /// The packed inode's data.
    pub(crate) packed: FileData,
    /// The packed inode's size. Unit: bytes.
    pub(crate) packed_size: u64,
    /// First block behind the data.
    pub(crate) end_block: u32,
    /// Digest over all blocks.
    pub(crate) digest: u128,
    /// Sums of all contents, if they were to be taken.
    pub(crate) sums: ContentSums,
    /// What was done.
    pub(crate) stats: Stats,
    /// Length of the extra device that holds some of the data, if there is one. Unit: blocks.
    pub(crate) external: Option<u32>,
}

impl Packed {
    /// Continues the packed inode with another, whose clusters lie behind all that is here.
    pub(crate) fn append(&mut self, more: Self) {
        let Some(encoded) = more.packed.compressed() else {
            return;
        };
        let algorithm = encoded.algorithm;
        let (places, pieces): (Vec<GrainAddr>, Vec<_>) = encoded.pieces().unzip();
        data::append_runs(&mut self.packed, Run::of(pieces, &places), algorithm);
        self.packed_size += more.packed_size;
        self.end_block = more.end_block;
        let both = [self.digest, more.digest].map(u128::to_le_bytes);
        self.digest = xxhash_rust::xxh3::xxh3_128(both.as_flattened());
    }
}

/// The end of so many blocks from this one on. A signed block address: readers treat it so.
pub(super) fn end_of(block: u32, count: u64) -> Result<u32> {
    let end = u32::try_from(u64::from(block) + count).ok();
    end.filter(|b| *b < 1 << 31)
        .ok_or_else(|| Error::limit("image", "larger than 2^31 blocks"))
}
