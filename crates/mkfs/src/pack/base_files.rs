//! Files that share the data of a base: only inline tails are written.

use super::address::{DataBlock, GrainAddr};
use super::data::{FileData, FileTail, Run, Table};
use super::packed::end_of;
use super::packer::Packer;
use super::shared_clusters::PartKey;
use crate::Result;
use crate::base::{BaseClusters, BaseData, BaseTail};
use crate::tree::InodeId;

impl Packer<'_> {
    /// Lets files use the clusters of file `number` of the bases.
    pub(crate) fn add_clusters(&mut self, number: u32, clusters: BaseClusters) {
        let key = PartKey::Base(number);
        self.pool.board().post(key, &clusters.posted);
        self.shared.insert(key, clusters.places);
    }

    /// Keeps the packed inode of the only base. No other data may go into a packed inode.
    pub(crate) fn keep_packed(&mut self) {
        self.adopted.stay();
    }

    /// Lets a file have its tail where the patched image has it.
    pub(crate) fn keep_tail(&mut self, file: InodeId, tail: BaseTail) {
        self.kept_tails.insert(file, tail);
    }

    /// Returns the place of a tail in a base. An inline tail is copied.
    pub(super) fn base_tail(&mut self, tail: BaseTail) -> Result<FileTail> {
        Ok(match tail {
            BaseTail::Cluster => FileTail::Cluster,
            BaseTail::Inline(bytes) => FileTail::Inline(self.result.spill.put(&bytes)?),
            BaseTail::Fragment(fragment) => FileTail::Fragment(self.adopted.add(fragment)),
        })
    }

    /// Adds a file whose `size` bytes, not 0, are in a base. `sum` is the checksum of the content, if checksums are
    /// taken.
    pub(crate) fn add_base_file(
        &mut self,
        file: InodeId,
        size: u64,
        data: BaseData,
        sum: Option<u64>,
    ) -> Result<()> {
        let data = match data {
            BaseData::Flat(block, tail) => FileData::Flat {
                block: block.unwrap_or(DataBlock::NONE),
                tail: (!tail.is_empty())
                    .then(|| self.result.spill.put(&tail))
                    .transpose()?,
            },
            BaseData::Chunks(chunks) => {
                if !chunks.tail.is_empty() {
                    let tail = self.result.spill.put(&chunks.tail)?;
                    self.tail_chunks.push((file, tail));
                }
                FileData::Table(Box::new(Table::of_base(chunks)))
            }
            BaseData::Fragment(fragment) => FileData::WholeFragment {
                offset: self.adopted.add(fragment),
            },
            BaseData::Encoded {
                algorithm,
                pieces,
                tail,
            } => {
                let tail = self.base_tail(tail)?;
                let (places, pieces): (Vec<GrainAddr>, Vec<_>) = pieces.into_iter().unzip();
                FileData::encoded(Run::group(pieces, &places), tail, algorithm)
            }
        };
        self.tables += data.footprint();
        if let Some(sum) = sum {
            // The whole file counts as one part.
            let sums = &mut self.result.sums;
            sums.add(file, true, usize::try_from(size).unwrap_or(usize::MAX), sum);
        }
        self.result.stats.base_files += 1;
        self.result.stats.base_bytes += size;
        self.set(file, data);
        Ok(())
    }

    /// Writes the last chunks of files whose inline tails were copied from a base.
    pub(super) fn store_tail_chunks(&mut self) -> Result<()> {
        let mut block = Vec::new();
        for (file, tail) in std::mem::take(&mut self.tail_chunks) {
            block.clear();
            self.result.spill.get(tail, &mut block)?;
            block.resize(self.options.bits.size_usize(), 0);
            self.fill_block()?;
            let at = DataBlock::image(end_of(0, self.options.bits.count(self.end))?);
            self.digest.update(&block);
            self.write(&block)?;
            self.result.stats.add_flat(tail.len() as u64, 1, 0);
            if let FileData::Table(table) = self.slot(file) {
                table.append(at);
            }
        }
        Ok(())
    }

    /// Returns the algorithm of new clusters of the packed inode.
    pub(super) fn packed_algorithm(&self) -> u8 {
        let spec = self.options.packed.spec;
        spec.map_or(0, |spec| spec.method.algorithm() as u8)
    }
}
