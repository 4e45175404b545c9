//! What the base has: which contents, and the chunks of files whose clusters others may use.

use super::chunking::Cutter;
use super::scan::{Content, Settings, Tools, parallel, read_through, sample};
use super::shared_runs::{self, Chunks};
use crate::Result;
use crate::base::{BaseFile, BaseInode, Bases};
use crate::options::Dedupe;
use crate::order::{ContentKey, PolicyId, content_key};
use crate::pack::input::Input;
use hashbrown::{HashMap, HashSet};
use std::sync::Arc;
use tuff_erofs::read::Inode;

/// Files of the base that a thread takes at a time: neighbours share clusters of the packed inode.
const FILES: usize = 16;
/// What it takes to know a file of the base: its place, its number and its key. Unit: bytes.
const KNOWN_COST: u64 = 96;
/// Clusters of files up to so many blocks are not worth an extent of their own.
const BLOCKS_MIN: u64 = 4;

/// The base, as far as its contents matter.
pub(super) struct BaseIndex<'a> {
    pub(super) base: &'a Arc<Bases>,
    /// Lengths of contents whose keys are known. Unit: bytes.
    sizes: HashSet<u64>,
    keys: HashMap<ContentKey, BaseInode>,
    /// Files whose clusters others may use, in the order of their data.
    pub(super) parts: Vec<BaseFile>,
}

/// The key of a content, whatever its policy is.
fn base_key(size: u64, hasher: &blake3::Hasher) -> ContentKey {
    content_key(size, PolicyId::ANY, &mut hasher.clone())
}

impl<'a> BaseIndex<'a> {
    /// Reads all files of the base that are as long as one of `contents`.
    pub(super) fn learn(
        base: &'a Arc<Bases>,
        contents: &[Content],
        settings: &Settings<'_>,
    ) -> Result<Self> {
        let wanted: HashSet<u64> = contents.iter().map(|c| c.size).collect();
        let cut =
            settings.dedupe == Dedupe::Content && contents.iter().any(|c| c.segment_bits.is_some());
        let least = BLOCKS_MIN * settings.block;
        let most = usize::try_from(settings.base_memory / KNOWN_COST).unwrap_or(usize::MAX);
        let files = base.files(most, &|inode: &Inode| {
            wanted.contains(&inode.size()) || cut && inode.size() > least
        })?;
        let parts = |f: &&BaseFile| cut && f.clusters && f.size > least;
        let parts = files.iter().filter(parts).copied().collect();
        let same: Vec<BaseFile> = files
            .into_iter()
            .filter(|f| wanted.contains(&f.size))
            .collect();
        let groups: Vec<&[BaseFile]> = same.chunks(FILES).collect();
        let look = |i: usize, tools: &mut Tools, out: &mut Vec<(ContentKey, BaseInode)>| {
            for file in groups[i] {
                out.push((key(base, file, &mut tools.buf)?, file.inode));
            }
            Ok(())
        };
        let mut keys = parallel(groups.len(), settings, &look)?.concat();
        // Of several files with one content the one with the lowest number.
        keys.sort_unstable();
        keys.dedup_by_key(|(key, _)| *key);
        Ok(Self {
            base,
            sizes: same.iter().map(|f| f.size).collect(),
            keys: keys.into_iter().collect(),
            parts,
        })
    }

    /// True if some file of the base is so long. Unit: bytes.
    pub(super) fn has_size(&self, size: u64) -> bool {
        self.sizes.contains(&size)
    }

    /// The file with this content.
    pub(super) fn get(&self, size: u64, hasher: &blake3::Hasher) -> Option<BaseInode> {
        self.keys.get(&base_key(size, hasher)).copied()
    }

    /// The chunks of the parts, in their order.
    pub(super) fn chunks(&self, cutter: Cutter, settings: &Settings<'_>) -> Result<Vec<Chunks>> {
        let look = |i: usize, tools: &mut Tools, out: &mut Vec<(usize, Chunks)>| {
            let Tools { buf, sampler, .. } = tools;
            let mut seen = |_: &[u8]| settings.progress.check();
            let mut ratio = |bytes: &[u8]| sample(sampler, bytes);
            let input = self.input(i);
            let size = self.parts[i].size;
            let mut chunks = shared_runs::chunks(&input, size, cutter, buf, &mut seen, &mut ratio)?;
            chunks.tell_apart(self.base.algorithm(self.parts[i].inode)?);
            out.push((i, chunks));
            Ok(())
        };
        let found = parallel(self.parts.len(), settings, &look)?;
        let mut found: Vec<(usize, Chunks)> = found.into_iter().flatten().collect();
        found.sort_unstable_by_key(|(i, _)| *i);
        Ok(found.into_iter().map(|(_, chunks)| chunks).collect())
    }

    /// The content of a part.
    pub(super) fn input(&self, part: usize) -> Input {
        Input::Base(Arc::clone(self.base), self.parts[part].inode)
    }
}

fn key(base: &Arc<Bases>, file: &BaseFile, buf: &mut Vec<u8>) -> Result<ContentKey> {
    let mut hasher = blake3::Hasher::new();
    let input = Input::Base(Arc::clone(base), file.inode);
    read_through(&input, file.size, buf, &mut |bytes| {
        hasher.update(bytes);
        Ok(())
    })?;
    Ok(base_key(file.size, &hasher))
}
