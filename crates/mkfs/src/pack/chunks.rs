//! Files in chunks of one size: equal chunks are stored once, chunks of zeros not at all.

use super::address::DataBlock;
use super::data::{FileData, Table};
use super::packed::end_of;
use super::packer::Packer;
use super::worker::{ChunkPart, PartOut};
use crate::{Error, Place, Result};
use tuff_store::Output;

impl Table {
    /// Returns the table of a file of which nothing was read yet, with chunks of one block.
    pub(super) fn empty() -> Self {
        Self {
            bits: 0,
            external: false,
            read: None,
            count: 0,
            next: (0, 0),
            runs: Vec::new(),
        }
    }
}

impl<'a> Packer<'a> {
    /// Writes all further chunks to `blob`.
    pub(crate) fn set_blob(&mut self, blob: &'a Output) {
        self.blob = Some(blob);
        self.result.external = Some(0);
    }

    /// Writes the new chunks of a part and records the places of all. `bytes` holds those with data.
    pub(super) fn place_chunks(
        &mut self,
        part: &PartOut,
        chunks: &[Option<ChunkPart>],
        bytes: &[u8],
    ) -> Result<()> {
        let block_size = self.options.bits.size_usize();
        let chunk = self.options.chunk.unwrap_or(block_size);
        if !matches!(self.slot(part.file), FileData::Table(_)) {
            let table = Table {
                // Fits: a chunk is a few MiB.
                bits: (chunk / block_size).trailing_zeros() as u8,
                external: self.blob.is_some(),
                ..Table::empty()
            };
            self.set(part.file, FileData::Table(Box::new(table)));
        }
        let before = self.slot(part.file).footprint();
        let mut places = Vec::with_capacity(chunks.len());
        // Within `bytes`: the start of what is not yet written, and the start of the next chunk.
        let (mut start, mut at) = (0, 0);
        for (i, chunk_part) in chunks.iter().enumerate() {
            let len = chunk.min(part.len - i * chunk) as u64;
            let Some(ChunkPart { key, blocks }) = chunk_part else {
                self.result.stats.hole_bytes += len;
                places.push(None);
                continue;
            };
            let end = at + *blocks as usize * block_size;
            let place = match self.chunks.get(key).copied() {
                Some(place) => {
                    self.write_chunks(&bytes[start..at])?;
                    start = end;
                    self.result.stats.shared_bytes += len;
                    place
                }
                None => {
                    let waiting = ((at - start) / block_size) as u64;
                    let block = DataBlock::image(end_of(self.chunks_end(), waiting)?);
                    // Beyond the limit later duplicates are missed, deterministically.
                    if self.chunks.len() < self.options.known_max {
                        self.chunks.insert(*key, block);
                    }
                    let stats = &mut self.result.stats;
                    match self.blob {
                        Some(_) => stats.external_bytes += len,
                        None => stats.add_flat(len, *blocks, 0),
                    }
                    block
                }
            };
            places.push(Some(place));
            at = end;
        }
        self.write_chunks(&bytes[start..at])?;
        if self.blob.is_some() {
            self.result.stats.external_files += u64::from(part.first);
        }
        if let FileData::Table(table) = self.slot(part.file) {
            places.into_iter().for_each(|place| table.push(place));
        }
        self.tables += self.slot(part.file).footprint() - before;
        Ok(())
    }

    /// Returns the block of the next chunk.
    fn chunks_end(&self) -> u32 {
        match self.blob {
            Some(_) => self.result.external.unwrap_or_default(),
            // Fits: an image has less than 2^31 blocks.
            None => self.options.bits.count(self.end) as u32,
        }
    }

    fn write_chunks(&mut self, bytes: &[u8]) -> Result<()> {
        let Some(blob) = self.blob else {
            return self.write(bytes);
        };
        let (bits, begin) = (self.options.bits, self.chunks_end());
        self.result.external = Some(end_of(begin, bits.count(bytes.len() as u64))?);
        blob.write_at(bytes, u64::from(begin) * bits.size())
            .map_err(|e| Error::io(Place::blob(), "cannot write", e))
    }
}
