//! Parts that files share with each other and with files of the base: from chunks to plans.

use super::base_index::BaseIndex;
use super::chunking::Chunker;
use super::scan::{DedupeCandidate, DedupeSettings, WorkerContext};
use super::shared_runs::{self, ChunkRun, Chunks, SegmentShape};
use crate::Result;
use crate::base::BaseClusters;
use crate::environment::parallel;
use crate::pack::content::FileContent;
use crate::pack::shared_clusters::{FilePlan, Owner};
use crate::tree::InodeId;
use crate::tree::order::PolicyId;
use hashbrown::HashMap;

/// Function that returns the content of a file.
type ContentOf<'a> = &'a (dyn Fn(InodeId) -> Result<FileContent> + Sync);

/// Input of the search for shared parts.
pub(super) struct PartMatcher<'a> {
    /// Contents of the image.
    pub(super) contents: &'a [DedupeCandidate],
    /// Chunks of the contents that may share parts, by index.
    pub(super) chunks: Vec<(u32, Chunks)>,
    /// Start of each tail that is stored in the packed inode. Unit: bytes.
    pub(super) tail_starts: &'a HashMap<InodeId, u32>,
    /// Index of the base.
    pub(super) known: Option<&'a BaseIndex<'a>>,
}

/// Plans of the files that share parts, and the clusters of the base files they use, by index.
type PlansAndClusters = (HashMap<InodeId, FilePlan>, HashMap<u32, BaseClusters>);

impl PartMatcher<'_> {
    /// Finds shared parts and returns the plans of the files that take part.
    pub(super) fn find_shared(
        self,
        settings: &DedupeSettings<'_>,
        chunker: Chunker,
        content: ContentOf<'_>,
    ) -> Result<PlansAndClusters> {
        if self.chunks.is_empty() {
            return Ok(PlansAndClusters::default());
        }
        let Self {
            contents,
            chunks,
            tail_starts,
            known,
        } = self;
        // File indexes from here on count files with chunks: those of the base, then those of the
        // image.
        let old = known.map_or(&[][..], |known| &known.parts);
        let (new, chunks): (Vec<u32>, Vec<Chunks>) = chunks.into_iter().unzip();
        let new: Vec<&DedupeCandidate> = new.into_iter().map(|i| &contents[i as usize]).collect();
        let mut all = match known {
            Some(known) => known.chunks(chunker, settings)?,
            None => Vec::new(),
        };
        for (content, mut chunks) in new.iter().zip(chunks) {
            chunks.salt_with_algorithm(content.algorithm.map(|a| a as u8));
            all.push(chunks);
        }
        let found = shared_runs::find(&all, old.len());
        let ratios: Vec<u32> = all.iter().map(|c| c.ratio).collect();
        drop(all);
        let of = |i: u32| match ((i as usize).checked_sub(old.len()), known) {
            (Some(i), _) => Ok((content(new[i].file)?, new[i].size)),
            (None, Some(known)) => Ok((known.content(i as usize), old[i as usize].size)),
            (None, None) => unreachable!("only a base has old files"),
        };
        let confirmed = confirm(&found, settings, chunker, &of)?;

        let mut clusters: HashMap<u32, BaseClusters> = HashMap::new();
        for run in &confirmed {
            let (i, file) = (run.owner, old.get(run.owner as usize));
            if let (Some(file), Some(known)) = (file, known)
                && !clusters.contains_key(&i)
            {
                clusters.insert(i, known.base.clusters(file.inode, i)?);
            }
        }
        let old_shapes = (0..old.len()).map(|i| {
            // Fits: inodes are counted in 32 bits.
            let clusters = clusters.get(&(i as u32))?;
            Some(SegmentShape {
                owner: Owner::Base(i as u32),
                size: old[i].size,
                own: clusters.len(),
                segment: 1 << 63,
                policy: PolicyId::DEFAULT,
                algorithm: clusters.algorithm,
                ratio: ratios[i],
            })
        });
        let new_shapes = new
            .iter()
            .zip(&ratios[old.len()..])
            .map(|(content, ratio)| {
                let end = tail_starts.get(&content.file);
                Some(SegmentShape {
                    owner: Owner::File(content.file),
                    size: content.size,
                    own: end.map_or(content.size, |from| u64::from(*from)),
                    segment: 1 << content.segment_bits?.get(),
                    policy: content.policy,
                    algorithm: content.algorithm.map(|a| a as u8),
                    ratio: *ratio,
                })
            });
        let shapes: Vec<Option<SegmentShape>> = old_shapes.chain(new_shapes).collect();
        let plans = shared_runs::select_runs(&confirmed, &shapes, &clusters, settings.block);
        Ok((plans, clusters))
    }
}

/// Compares each run with the data it repeats and drops those that differ. Each file is compared by
/// one worker. `of` returns a file's content and its length.
pub(super) fn confirm(
    runs: &[ChunkRun],
    settings: &DedupeSettings<'_>,
    chunker: Chunker,
    of: &(dyn Fn(u32) -> Result<(FileContent, u64)> + Sync),
) -> Result<Vec<ChunkRun>> {
    let by_file: Vec<&[ChunkRun]> = runs.chunk_by(|a, b| a.file == b.file).collect();
    let compare =
        |i: usize, context: &mut WorkerContext, out: &mut Vec<(usize, ChunkRun)>| -> Result<()> {
            let runs = by_file[i];
            let (file, size) = of(runs[0].file)?;
            let file_reader = file.open()?;
            for same in runs.chunk_by(|a, b| a.owner == b.owner) {
                let (owner, owner_size) = of(same[0].owner)?;
                let owner_reader = owner.open()?;
                for run in same {
                    settings.progress.check()?;
                    let sizes = (size, owner_size);
                    let readers = (&file_reader, &owner_reader);
                    let widen = chunker.max() as u64;
                    let windows = &mut context.windows;
                    let run = shared_runs::confirm(*run, sizes, readers, widen, windows)?;
                    out.extend(run.map(|run| (i, run)));
                }
            }
            Ok(())
        };
    let mut confirmed =
        parallel(by_file.len(), settings.threads, settings.progress, &compare)?.concat();
    // The sort is stable, so runs of a file stay in order.
    confirmed.sort_by_key(|(i, _)| *i);
    Ok(confirmed.into_iter().map(|(_, run)| run).collect())
}
