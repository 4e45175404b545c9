//! Index of the base images' contents: whole files by digest, and files whose chunks new files may
//! share.

use super::chunking::Chunker;
use super::scan::{DedupeCandidate, DedupeSettings, WorkerContext, read_through, sample};
use super::shared_runs::{self, Chunks};
use crate::Result;
use crate::base::{BaseFile, BaseInode, Bases};
use crate::environment::parallel;
use crate::options::Dedupe;
use crate::pack::content::FileContent;
use crate::tree::order::{ContentKey, PolicyId, content_key};
use hashbrown::{HashMap, HashSet};
use std::sync::Arc;
use tuff_erofs::read::Inode;

/// Files of the base that a worker takes at once. Neighbours share clusters of the packed inode.
const FILES: usize = 16;
/// Memory for each indexed file of the base: location, inode and key. Unit: bytes.
const KNOWN_COST: u64 = 96;
/// Files of at most this many blocks are too small to share parts of.
const BLOCKS_MIN: u64 = 4;

/// Contents of the base that new files may refer to.
pub(super) struct BaseIndex<'a> {
    pub(super) base: &'a Arc<Bases>,
    /// File sizes of which keys were computed. Unit: bytes.
    sizes: HashSet<u64>,
    keys: HashMap<ContentKey, BaseInode>,
    /// Files whose clusters new files may share, in the order of their data.
    pub(super) parts: Vec<BaseFile>,
    /// Stored files whose blocks new files may share, in the order of their data.
    pub(super) stored: Vec<BaseFile>,
}

/// Returns true if a content may consist of blocks of stored files of the base.
pub(super) fn takes_blocks(candidate: &DedupeCandidate, settings: &DedupeSettings<'_>) -> bool {
    !candidate.packed && candidate.size > BLOCKS_MIN * settings.block
}

/// Content key that ignores the compression policy.
fn base_key(size: u64, hasher: &blake3::Hasher) -> ContentKey {
    content_key(size, PolicyId::ANY, &mut hasher.clone())
}

impl<'a> BaseIndex<'a> {
    /// Reads all files of the base that have the size of one of `contents`.
    pub(super) fn build(
        base: &'a Arc<Bases>,
        contents: &[DedupeCandidate],
        settings: &DedupeSettings<'_>,
    ) -> Result<Self> {
        let sizes: HashSet<u64> = contents.iter().map(|c| c.size).collect();
        let cut =
            settings.dedupe == Dedupe::Content && contents.iter().any(|c| c.segment_bits.is_some());
        let size_min = BLOCKS_MIN * settings.block;
        let blocks = settings.shares_stored
            && settings.dedupe == Dedupe::Content
            && contents.iter().any(|c| takes_blocks(c, settings));
        let count_max = usize::try_from(settings.base_memory / KNOWN_COST).unwrap_or(usize::MAX);
        let files = base.files(count_max, &|inode: &Inode| {
            sizes.contains(&inode.size()) || (cut || blocks) && inode.size() > size_min
        })?;
        let parts = |f: &&BaseFile| cut && f.clusters && f.size > size_min;
        let parts = files.iter().filter(parts).copied().collect();
        let stored = |f: &&BaseFile| blocks && f.stored && f.size > size_min;
        let stored = files.iter().filter(stored).copied().collect();
        let same_size: Vec<BaseFile> = files
            .into_iter()
            .filter(|f| sizes.contains(&f.size))
            .collect();
        let groups: Vec<&[BaseFile]> = same_size.chunks(FILES).collect();
        let scan =
            |i: usize, context: &mut WorkerContext, out: &mut Vec<(ContentKey, BaseInode)>| {
                for file in groups[i] {
                    out.push((key(base, file, &mut context.buf)?, file.inode));
                }
                Ok(())
            };
        let mut keys = parallel(groups.len(), settings.threads, settings.progress, &scan)?.concat();
        // Among several files with equal content, use the one with the lowest inode number.
        keys.sort_unstable();
        keys.dedup_by_key(|(key, _)| *key);
        Ok(Self {
            base,
            sizes: same_size.iter().map(|f| f.size).collect(),
            keys: keys.into_iter().collect(),
            parts,
            stored,
        })
    }

    /// True if a file of the base has this size. Unit: bytes.
    pub(super) fn has_size(&self, size: u64) -> bool {
        self.sizes.contains(&size)
    }

    /// Base inode with this content.
    pub(super) fn get(&self, size: u64, hasher: &blake3::Hasher) -> Option<BaseInode> {
        self.keys.get(&base_key(size, hasher)).copied()
    }

    /// Splits the files in `parts` into chunks and returns them in the same order.
    pub(super) fn chunks(
        &self,
        chunker: Chunker,
        settings: &DedupeSettings<'_>,
    ) -> Result<Vec<Chunks>> {
        let mut all = self.chunks_of(&self.parts, chunker, settings)?;
        for (file, chunks) in self.parts.iter().zip(&mut all) {
            chunks.salt_with_algorithm(self.base.algorithm(file.inode)?);
        }
        Ok(all)
    }

    /// Splits `files` into chunks and returns them in the same order.
    pub(super) fn chunks_of(
        &self,
        files: &[BaseFile],
        chunker: Chunker,
        settings: &DedupeSettings<'_>,
    ) -> Result<Vec<Chunks>> {
        let scan = |i: usize, context: &mut WorkerContext, out: &mut Vec<(usize, Chunks)>| {
            let WorkerContext { buf, sampler, .. } = context;
            let mut seen = |_: &[u8]| settings.progress.check();
            let mut ratio = |bytes: &[u8]| sample(sampler, bytes);
            let content = self.content_of(&files[i]);
            let size = files[i].size;
            let chunks = shared_runs::chunks(&content, size, chunker, buf, &mut seen, &mut ratio)?;
            out.push((i, chunks));
            Ok(())
        };
        let found = parallel(files.len(), settings.threads, settings.progress, &scan)?;
        let mut found: Vec<(usize, Chunks)> = found.into_iter().flatten().collect();
        found.sort_unstable_by_key(|(i, _)| *i);
        Ok(found.into_iter().map(|(_, chunks)| chunks).collect())
    }

    /// Returns the content of a file of the base.
    pub(super) fn content_of(&self, file: &BaseFile) -> FileContent {
        base_content(self.base, file.inode)
    }

    /// Returns the content of `parts[part]`.
    pub(super) fn content(&self, part: usize) -> FileContent {
        base_content(self.base, self.parts[part].inode)
    }
}

fn base_content(bases: &Arc<Bases>, inode: BaseInode) -> FileContent {
    let bases = Arc::clone(bases);
    FileContent::Base { bases, inode }
}

fn key(base: &Arc<Bases>, file: &BaseFile, buf: &mut Vec<u8>) -> Result<ContentKey> {
    let mut hasher = blake3::Hasher::new();
    let content = base_content(base, file.inode);
    read_through(&content, file.size, buf, &mut |bytes| {
        hasher.update(bytes);
        Ok(())
    })?;
    Ok(base_key(file.size, &hasher))
}
