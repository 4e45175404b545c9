//! Result of packing: places of all data.

use super::address::GrainAddr;
use super::checksums::ContentSums;
use super::data::{self, FileData, Run};
use crate::pack::spill::Spill;
use crate::stats::Stats;
use crate::{Error, Place, Result};

/// Places of all data.
pub(crate) struct Packed {
    /// Data of each file, by inode.
    pub(crate) files: Vec<FileData>,
    /// Inline tails of all files.
    pub(crate) spill: Spill,
    /// Data of the packed inode.
    pub(crate) packed: FileData,
    /// Size of the packed inode in bytes.
    pub(crate) packed_size: u64,
    /// First block after the data.
    pub(crate) end_block: u32,
    /// Digest of all blocks.
    pub(crate) digest: u128,
    /// Checksums of all contents, if they are taken.
    pub(crate) sums: ContentSums,
    /// Counters of the packer.
    pub(crate) stats: Stats,
    /// Length in blocks of the extra device that holds some of the data, if there is one.
    pub(crate) external: Option<u32>,
}

impl Packed {
    /// Continues the packed inode with another, whose clusters follow all data.
    pub(crate) fn append(&mut self, more: Self) {
        let Some(encoded) = more.packed.compressed() else {
            return;
        };
        let algorithms = encoded.algorithms;
        let (places, pieces): (Vec<GrainAddr>, Vec<_>) = encoded.pieces().unzip();
        data::append_runs(&mut self.packed, Run::group(pieces, &places), algorithms);
        self.packed_size += more.packed_size;
        self.end_block = more.end_block;
        let both = [self.digest, more.digest].map(u128::to_le_bytes);
        self.digest = xxhash_rust::xxh3::xxh3_128(both.as_flattened());
    }
}

/// Returns the end of `count` blocks from `block` on. Readers treat block addresses as signed.
pub(super) fn end_of(block: u32, count: u64) -> Result<u32> {
    let end = u32::try_from(u64::from(block) + count).ok();
    end.filter(|b| *b < 1 << 31)
        .ok_or_else(|| Error::limit(Place::image(), "larger than 2^31 blocks"))
}
