//! Files whose data stays on the extra device.

use super::address::DataBlock;
use super::data::{Chunked, FileData};
use super::packer::Packer;
use super::sparse::Sparse;
use crate::tree::InodeId;

impl Packer<'_> {
    /// Sets the length of the extra device in blocks.
    pub(crate) fn set_external(&mut self, blocks: u32) {
        self.result.external = Some(blocks);
    }

    /// Returns the length of the extra device in blocks.
    pub(crate) fn external(&self) -> u64 {
        self.result.external.unwrap_or_default().into()
    }

    /// Adds a file of `size` bytes, not 0, whose data starts at `block` of the extra device.
    pub(crate) fn add_external(&mut self, file: InodeId, size: u64, block: u32) {
        self.count_external(size, 0);
        let external = true;
        let block = DataBlock::image(block);
        self.set(file, FileData::OneChunk { external, block });
    }

    /// Adds a file with holes. Its chunks with data are back to back on the extra device from `block` on. `holes`
    /// counts the bytes of the holes.
    pub(crate) fn add_external_sparse(
        &mut self,
        file: InodeId,
        size: u64,
        holes: u64,
        sparse: Sparse,
        block: u32,
    ) {
        self.count_external(size, holes);
        let chunked = FileData::Chunked(Box::new(Chunked {
            bits: sparse.bits,
            external: true,
            runs: sparse.runs,
            block: DataBlock::image(block),
        }));
        self.tables += chunked.footprint();
        self.set(file, chunked);
    }

    fn count_external(&mut self, size: u64, holes: u64) {
        let stats = &mut self.result.stats;
        stats.external_files += 1;
        stats.external_bytes += size - holes;
        stats.sparse_files += u64::from(holes > 0);
        stats.hole_bytes += holes;
        self.progress.add_bytes(size);
    }
}
