//! Ranges that files share with stored files of a base.
//!
//! A stored file has no clusters, so ranges of it are shared as chunks: whole blocks at whole chunks of the new file. Such a
//! file is stored in chunks, of which some are in the base and the others are new. Files that share nothing with the base
//! keep their form.

use super::base_index::BaseIndex;
use super::chunking::Chunker;
use super::scan::{DedupeCandidate, DedupeSettings, sample};
use super::shared_parts::confirm;
use super::shared_runs::{self, ChunkRun as Shared, Chunks};
use crate::Result;
use crate::base::{BaseData, BaseFile, Bases};
use crate::pack::address::DataBlock;
use crate::pack::content::FileContent;
use crate::pack::sparse::{ChunkRun, Sparse};
use crate::tree::InodeId;
use tuff_format::BlockBits;

/// File in chunks of which some are in a base.
pub(crate) struct StoredParts {
    /// Chunks that are new.
    pub(crate) new: Sparse,
    /// Chunks that are in a base, in ascending order, each run with its first block.
    pub(crate) shared: Vec<(ChunkRun, DataBlock)>,
}

impl StoredParts {
    /// Returns the length of the shared chunks of a file of `size` bytes. Unit: bytes.
    pub(crate) fn shared_bytes(&self, size: u64, block: BlockBits) -> u64 {
        let chunk = block.size() << self.new.bits;
        let len = |run: &ChunkRun| (run.count * chunk).min(size - run.first * chunk);
        self.shared.iter().map(|(run, _)| len(run)).sum()
    }
}

/// Largest number of entries of a chunk table.
const ENTRIES_MAX: u64 = 1 << 20;
/// Length of an entry of a chunk table with device numbers. Unit: bytes.
const ENTRY_LEN: u64 = 8;
/// Largest chunk, as log2 over the block size.
const CHUNK_BITS_MAX: u8 = 11;
/// Saving from which a file is stored in chunks. Unit: bytes of image.
const SAVING_MIN: u64 = 16 << 10;
/// Number of samples of the data that is not shared.
const SAMPLES: u64 = 16;
/// Length of a sample. Unit: bytes.
const SAMPLE_LEN: u64 = 64 << 10;

/// Finds the files that share ranges with stored files of the base. `chunks` are those of the contents with these indexes,
/// in ascending order; `content` opens a file.
pub(super) fn find(
    contents: &[DedupeCandidate],
    chunks: &[(u32, Chunks)],
    known: &BaseIndex<'_>,
    chunker: Chunker,
    settings: &DedupeSettings<'_>,
    content: &(dyn Fn(InodeId) -> Result<FileContent> + Sync),
) -> Result<Vec<(u32, StoredParts)>> {
    // Compressible files share clusters.
    let is_dense = |(i, chunks): &&(u32, Chunks)| {
        chunks.ratio <= 17 || contents[*i as usize].algorithm.is_none()
    };
    let new: Vec<&(u32, Chunks)> = chunks.iter().filter(is_dense).collect();
    if new.is_empty() || known.stored.is_empty() {
        return Ok(Vec::new());
    }
    let mut all = known.chunks_of(&known.stored, chunker, settings)?;
    let old = all.len();
    all.extend(new.iter().map(|(_, chunks)| chunks.clone()));
    let mut found = shared_runs::find(&all, old);
    drop(all);
    found.retain(|run| (run.owner as usize) < old);
    let of = |i: u32| match (i as usize).checked_sub(old) {
        Some(i) => {
            let candidate = &contents[new[i].0 as usize];
            Ok((content(candidate.file)?, candidate.size))
        }
        None => {
            let file = &known.stored[i as usize];
            Ok((known.content_of(file), file.size))
        }
    };
    let confirmed = confirm(&found, settings, chunker, &of)?;
    let (mut parts, mut sampler) = (Vec::new(), None);
    for runs in confirmed.chunk_by(|a, b| a.file == b.file) {
        let (i, _) = new[runs[0].file as usize - old];
        let candidate = &contents[*i as usize];
        let mut planner = Planner {
            size: candidate.size,
            block: settings.block,
            pieces: Vec::new(),
        };
        for run in runs {
            planner.add(run, &known.stored[run.owner as usize], known.base)?;
        }
        let Some((bits, saving)) = planner.chunk_bits(settings.chunk) else {
            continue;
        };
        let planned = planner.parts(bits);
        let loss = match candidate.algorithm {
            Some(_) => loss(
                &planned.new,
                candidate,
                settings,
                &content(candidate.file)?,
                &mut sampler,
            )?,
            None => 0,
        };
        if saving > loss.saturating_add(SAVING_MIN) {
            parts.push((*i, planned));
        }
    }
    Ok(parts)
}

/// Estimates the bytes that compression of the new chunks would save.
fn loss(
    new: &Sparse,
    candidate: &DedupeCandidate,
    settings: &DedupeSettings<'_>,
    content: &FileContent,
    sampler: &mut Option<Box<dyn tuff_codec::Encoder>>,
) -> Result<u64> {
    let chunk = settings.block << new.bits;
    let len = |run: &ChunkRun| (run.count * chunk).min(candidate.size - run.first * chunk);
    let total: u64 = new.runs.iter().map(len).sum();
    let reader = content.open()?;
    let step = (total / SAMPLES).max(1);
    let (mut next, mut before, mut saved, mut sampled) = (0, 0, 0, 0);
    let mut buf = vec![0; SAMPLE_LEN as usize];
    for run in &new.runs[..] {
        let here = len(run);
        while next < before + here {
            let within = next - before;
            // Fits: at most the length of the buffer.
            let bytes = &mut buf[..(here - within).min(SAMPLE_LEN) as usize];
            reader.read_exact(bytes, run.first * chunk + within)?;
            let ratio = u64::from(sample(sampler, bytes));
            saved += 1024 - 16 * 1024 / ratio;
            sampled += 1;
            next += step.max(SAMPLE_LEN);
        }
        before += here;
    }
    // `saved` is counted in 1024ths of a sample.
    Ok((total / 1024).saturating_mul(saved / u64::max(sampled, 1)))
}

/// Blocks of a file that are in the base.
struct Planner {
    /// Size of the file. Unit: bytes.
    size: u64,
    block: u64,
    /// Ranges in ascending order: first block of the file, number of blocks, and first block in the base.
    pieces: Vec<(u64, u64, DataBlock)>,
}

impl Planner {
    /// Returns the number of blocks of the file.
    fn blocks(&self) -> u64 {
        self.size.div_ceil(self.block)
    }

    /// Adds the whole blocks of a run that the base has as blocks.
    fn add(&mut self, run: &Shared, owner: &BaseFile, bases: &Bases) -> Result<()> {
        let block = self.block;
        if !run.at.abs_diff(run.owner_at).is_multiple_of(block) {
            return Ok(());
        }
        let done = self
            .pieces
            .last()
            .map_or(0, |(first, count, _)| first + count);
        let first = run.at.div_ceil(block).max(done);
        // A last block in part must end both files: the base has zeros behind it.
        let is_end = run.at + run.len == self.size && run.owner_at + run.len == owner.size;
        let end = match is_end {
            true => (run.at + run.len).div_ceil(block),
            false => (run.at + run.len) / block,
        };
        if first >= end {
            return Ok(());
        }
        // Blocks of the owner that correspond to those of the file.
        let to_owner = |at: u64| match run.owner_at >= run.at {
            true => at + (run.owner_at - run.at) / block,
            false => at - (run.at - run.owner_at) / block,
        };
        let (from, to) = (to_owner(first), to_owner(end));
        for (stored, at) in stored_runs(owner, bases, block)? {
            let (lo, hi) = (
                stored.first.max(from),
                (stored.first + stored.count).min(to),
            );
            if lo < hi {
                // Fits: blocks of a base are counted in 32 bits.
                let at = at.plus((lo - stored.first) as u32);
                self.pieces.push((first + (lo - from), hi - lo, at));
            }
        }
        Ok(())
    }

    /// Returns the shared chunks of this size.
    fn shared(&self, bits: u8) -> Vec<(ChunkRun, DataBlock)> {
        let whole = |(first, count, at): &(u64, u64, DataBlock)| {
            let begin = first.div_ceil(1 << bits);
            let end = match first + count == self.blocks() {
                true => (first + count).div_ceil(1 << bits),
                false => (first + count) >> bits,
            };
            let count = end.checked_sub(begin).filter(|count| *count > 0)?;
            // Fits: below the end of the range, in blocks of a base.
            let at = at.plus(((begin << bits) - first) as u32);
            Some((
                ChunkRun {
                    first: begin,
                    count,
                },
                at,
            ))
        };
        self.pieces.iter().filter_map(whole).collect()
    }

    /// Returns the chunk size that saves the most, as log2 over the block size, and the saving in bytes. A given size stays.
    fn chunk_bits(&self, given: Option<usize>) -> Option<(u8, u64)> {
        let all: Vec<u8> = match given {
            // Fits: a chunk is a few MiB.
            Some(chunk) => vec![(chunk as u64 / self.block).ilog2() as u8],
            None => (0..=CHUNK_BITS_MAX).collect(),
        };
        let saving = |bits: u8| {
            let entries = self.blocks().div_ceil(1 << bits);
            // The last chunk of a file may have fewer blocks.
            let len = |run: &ChunkRun| {
                let end = ((run.first + run.count) << bits).min(self.blocks());
                (end - (run.first << bits)) * self.block
            };
            let shared: u64 = self.shared(bits).iter().map(|(run, _)| len(run)).sum();
            (entries <= ENTRIES_MAX).then(|| shared.saturating_sub(entries * ENTRY_LEN))
        };
        let all = all.into_iter().rev();
        let all = all.filter_map(|bits| Some((bits, saving(bits)?)));
        // The last one of equal savings counts: smaller chunks share more with later versions.
        all.max_by_key(|(_, saving)| *saving)
    }

    fn parts(&self, bits: u8) -> StoredParts {
        let shared = self.shared(bits);
        let count = self.blocks().div_ceil(1 << bits);
        let (mut new, mut at) = (Vec::new(), 0);
        let ranges = shared.iter().map(|(run, _)| (run.first, run.count));
        for (first, len) in ranges.chain([(count, 0)]) {
            if at < first {
                new.push(ChunkRun {
                    first: at,
                    count: first - at,
                });
            }
            at = first + len;
        }
        StoredParts {
            new: Sparse {
                bits,
                runs: new.into(),
            },
            shared,
        }
    }
}

/// Returns the blocks of a stored file of a base, without an inline tail.
fn stored_runs(file: &BaseFile, bases: &Bases, block: u64) -> Result<Vec<(ChunkRun, DataBlock)>> {
    Ok(match bases.data(file.inode, true)? {
        Some(BaseData::Flat(Some(at), tail)) => {
            let count = (file.size - tail.len() as u64).div_ceil(block);
            vec![(ChunkRun { first: 0, count }, at)]
        }
        Some(BaseData::Chunks(chunks)) => chunks.runs,
        _ => Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: a last chunk in part counted as a whole one, so a single large chunk seemed to save the most.
    #[test]
    fn a_file_that_moves_by_whole_blocks_shares_them_all() {
        let moved = Planner {
            size: 1040 * 4096,
            block: 4096,
            pieces: vec![(40, 1000, DataBlock::base(7))],
        };
        assert_eq!(
            moved.chunk_bits(None),
            Some((3, 1000 * 4096 - 130 * ENTRY_LEN))
        );
        let shared = moved.shared(3);
        assert_eq!((shared[0].0.first, shared[0].0.count), (5, 125));
    }
}
