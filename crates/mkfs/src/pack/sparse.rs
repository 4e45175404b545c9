//! Chunks of sparse files.

use crate::source::DataRun;
use std::sync::Arc;
use tuff_format::BlockBits;

/// Consecutive chunks of a sparse file that hold data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChunkRun {
    /// Number of the first chunk.
    pub(crate) first: u64,
    /// Number of consecutive chunks.
    pub(crate) count: u64,
}

impl ChunkRun {
    /// Returns chunks `from` to `to` of the run.
    pub(super) const fn part(self, from: u64, to: u64) -> Self {
        Self {
            first: self.first + from,
            count: to - from,
        }
    }
}

/// Chunks of a sparse file.
pub(crate) struct Sparse {
    /// log2 of the chunk size over the block size.
    pub(crate) bits: u8,
    /// Chunks that hold data.
    pub(crate) runs: Arc<[ChunkRun]>,
}

impl Sparse {
    /// Chooses the chunk size of a file of `size` bytes with data only in `runs`: as large as the edges of the holes
    /// allow, and large enough for the limit of the table.
    pub(crate) fn plan(size: u64, runs: &[DataRun], bits: BlockBits) -> Self {
        const ENTRIES_MAX: u64 = 1 << 20;
        let mut edges = 0;
        for run in runs {
            edges |= run.file_offset / bits.size();
            let end = run.file_offset + run.len;
            // The end of the file may cut the last chunk short.
            if end < size {
                edges |= bits.count(end);
            }
        }
        let whole = bits.count(size).next_power_of_two().trailing_zeros();
        let mut chunk = edges.trailing_zeros().min(whole).min(31);
        while bits.count(size) >> chunk > ENTRIES_MAX && chunk < 31 {
            chunk += 1;
        }
        Self::of_size(size, runs, bits, chunk)
    }

    /// Returns the chunks of a file of `size` bytes with data only in `runs`. `chunk` is log2 of their size over the
    /// block size.
    pub(crate) fn of_size(size: u64, runs: &[DataRun], bits: BlockBits, chunk: u32) -> Self {
        debug_assert!(runs.iter().all(|r| r.file_offset + r.len <= size));
        let chunk_size = bits.size() << chunk;
        let mut chunks: Vec<ChunkRun> = Vec::new();
        for run in runs.iter().filter(|r| r.len > 0) {
            let first = run.file_offset / chunk_size;
            let end = (run.file_offset + run.len).div_ceil(chunk_size);
            match chunks.last_mut() {
                Some(last) if last.first + last.count >= first => {
                    last.count = last.count.max(end - last.first);
                }
                _ => chunks.push(ChunkRun {
                    first,
                    count: end - first,
                }),
            }
        }
        Self {
            bits: chunk as u8,
            runs: chunks.into(),
        }
    }
}

impl Sparse {
    /// Returns chunks that hold exactly `runs`, whose blocks in the source are back to back. `None` if an edge is
    /// inside a block, or if the table would be too long.
    pub(crate) fn exact(size: u64, runs: &[DataRun], bits: BlockBits) -> Option<Self> {
        let at_block = |at: u64| at.is_multiple_of(bits.size());
        let mut next = None;
        for run in runs {
            let end = run.file_offset + run.len;
            let whole = at_block(run.file_offset) && at_block(run.source_offset);
            if !whole
                || next.is_some_and(|n| n != run.source_offset)
                || !(at_block(end) || end == size)
            {
                return None;
            }
            next = Some(run.source_offset + run.len);
        }
        let sparse = Self::plan(size, runs, bits);
        // A chunk that extends into a hole would be longer than the stored data.
        let chunk_size = bits.size() << sparse.bits;
        let data: u64 = (sparse.runs.iter())
            .map(|r| ((r.first + r.count) * chunk_size).min(size) - r.first * chunk_size)
            .sum();
        (data == runs.iter().map(|r| r.len).sum::<u64>()).then_some(sparse)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(file_offset: u64, len: u64) -> DataRun {
        DataRun {
            file_offset,
            source_offset: 0,
            len,
        }
    }

    #[test]
    fn chunks_follow_the_edges_of_holes() {
        let plan = Sparse::plan(
            8 << 20,
            &[run(0, 4096), run(1 << 20, 1 << 20)],
            BlockBits::B4K,
        );
        assert_eq!(plan.bits, 0);
        assert_eq!(
            *plan.runs,
            [
                ChunkRun { first: 0, count: 1 },
                ChunkRun {
                    first: 256,
                    count: 256
                }
            ]
        );
        let plan = Sparse::plan(8 << 20, &[run(1 << 20, 1 << 20)], BlockBits::B4K);
        assert_eq!(
            (plan.bits, &*plan.runs),
            (8, &[ChunkRun { first: 1, count: 1 }][..])
        );
        let plan = Sparse::plan(1 << 40, &[], BlockBits::B4K);
        assert!(plan.runs.is_empty() && (1u64 << 28) >> plan.bits <= 1 << 20);
    }
}
