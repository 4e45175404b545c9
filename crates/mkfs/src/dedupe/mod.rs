//! Deduplication analysis before packing: finds equal files, files that share parts, and similar
//! files.
//!
//! ```text
//! contents ──► [workers] digests, chunks, sketches ──► duplicates ──► runs ──► [workers] compare ──► plans
//!                                              └──► groups ──► order of the packed inode
//! ```
//!
//! The result depends only on the contents and their order. Workers compute digests, chunks and
//! sketches; one thread makes all decisions in the order of the contents. Everything that is shared
//! was compared: whole files by BLAKE3, parts byte by byte.

pub(crate) mod auto;
mod base_index;
mod chunking;
mod cuts;
mod scan;
mod shared_parts;
mod shared_runs;
mod similarity;
mod stage;
mod stored_parts;

pub(crate) use cuts::Cuts;
pub(crate) use scan::{PackedFile, read_through};
pub(crate) use stage::{Decisions, StoredData, decide};
pub(crate) use stored_parts::StoredParts;

use crate::base::{BaseClusters, BaseInode, Bases};
use crate::environment::parallel;
use crate::options::Dedupe;
use crate::pack::checksums::sum;
use crate::pack::content::FileContent;
use crate::pack::shared_clusters::FilePlan;
use crate::source::readahead::{PrefetchRange, ReadaheadWindow};
use crate::tree::InodeId;
use crate::tree::order::{ContentKey, PolicyId, content_key};
use crate::{Error, Result};
use auto::{Choice, Chooser};
use base_index::{BaseIndex, takes_blocks};
use chunking::{Chunker, Sketch};
use hashbrown::HashMap;
use scan::{DedupeCandidate, DedupeSettings, WorkerContext, sample};
use shared_parts::PartMatcher;
use shared_runs::Chunks;
use std::sync::Arc;
use xxhash_rust::xxh3::Xxh3;

/// Result of the analysis: duplicates, shared parts and the order of the packed inode.
#[derive(Default)]
pub(crate) struct DedupePlan {
    /// Files whose content equals that of an earlier file, with that file.
    pub(crate) duplicates: HashMap<InodeId, InodeId>,
    /// Files whose content is in the base, with the base's inode and the content's checksum.
    pub(crate) in_base: HashMap<InodeId, (BaseInode, Option<u64>)>,
    /// Files and tails in the packed inode in the order of their data, without duplicates.
    pub(crate) packed: Vec<PackedFile>,
    /// Those of files that a start reads, which follow all others.
    pub(crate) packed_listed: Vec<PackedFile>,
    /// Start of each tail that is stored in the packed inode. Unit: bytes.
    pub(crate) tail_starts: HashMap<InodeId, u32>,
    /// Files that are not stored with the default compression.
    pub(crate) choices: HashMap<InodeId, Choice>,
    /// Files that share parts with other files, in either direction.
    pub(crate) plans: HashMap<InodeId, FilePlan>,
    /// Clusters of base files that plans refer to, by index of the file.
    pub(crate) clusters: HashMap<u32, BaseClusters>,
    /// Files in chunks of which some are in the base.
    pub(crate) stored_parts: HashMap<InodeId, StoredParts>,
}

/// Results of the workers, by index of the content. There may be millions of contents, and most
/// have no chunks.
#[derive(Default)]
struct ScanResults {
    keys: Vec<(ContentKey, u32)>,
    /// Contents that the base has.
    in_base: Vec<(u32, BaseInode, Option<u64>)>,
    sketches: Vec<(u32, Sketch)>,
    chunks: Vec<(u32, Chunks)>,
    /// Choices other than the default.
    choices: Vec<(u32, Choice)>,
}

/// Maximum size of a file of which a sketch is taken. Unit: bytes.
const SKETCH_MAX: u64 = 256 << 10;
/// Maximum readahead per content. Unit: bytes.
const READAHEAD_MAX: u64 = 256 << 10;
/// log2 of the default average chunk length. Unit: bytes.
const DEFAULT_CHUNK_BITS: u32 = 12;

/// Analyses `contents`, given in the order of their data. `input` opens a content and is called
/// from several threads. `base` holds the images whose data need not be stored again.
fn find_duplicates(
    mut contents: Vec<DedupeCandidate>,
    settings: &DedupeSettings<'_>,
    base: Option<&Arc<Bases>>,
    content: &(dyn Fn(InodeId) -> Result<FileContent> + Sync),
) -> Result<DedupePlan> {
    let known = base.map(|base| BaseIndex::build(base, &contents, settings));
    let known = known.transpose()?;
    let parts = known.as_ref().map_or(&[][..], |known| &known.parts);
    let stored = known.as_ref().map_or(&[][..], |known| &known.stored);
    let cut = contents
        .iter()
        .filter(|c| is_cut(c, known.as_ref(), settings));
    let of_base = parts.iter().chain(stored).map(|f| f.size);
    let total = cut.map(|c| c.size).sum::<u64>() + of_base.sum::<u64>();
    let chunker = chunker(total, settings);
    let mut results = scan_contents(&contents, settings, known.as_ref(), chunker, content)?;

    let mut plan = DedupePlan::default();
    for (i, choice) in std::mem::take(&mut results.choices) {
        let candidate = &mut contents[i as usize];
        *candidate = with_choice(candidate, choice, settings);
        plan.choices.insert(candidate.file, choice);
    }
    let contents = &contents[..];
    // Contents stored elsewhere: in the base, or as duplicates.
    let mut is_shared = vec![false; contents.len()];
    for (i, nid, sum) in std::mem::take(&mut results.in_base) {
        let candidate = &contents[i as usize];
        let stored = candidate.algorithm.is_none();
        let can = |base: &Bases| Ok::<_, Error>(base.data(nid, stored)?.is_some());
        if base.map_or(Ok(false), |base| can(base))? {
            plan.in_base.insert(candidate.file, (nid, sum));
            is_shared[i as usize] = true;
        }
    }
    for same in results.keys.chunk_by(|a, b| a.0 == b.0) {
        // A start reads one range, so its files come first.
        let listed = same.iter().position(|(_, i)| contents[*i as usize].listed);
        let (_, first) = same[listed.unwrap_or(0)];
        for (_, i) in same.iter().filter(|(_, i)| *i != first) {
            let first = contents[first as usize].file;
            plan.duplicates.insert(contents[*i as usize].file, first);
            is_shared[*i as usize] = true;
        }
    }
    results.keys = Vec::new();
    results.chunks.retain(|(i, _)| !is_shared[*i as usize]);
    if let Some(known) = &known {
        let chunks = &results.chunks;
        let found = stored_parts::find(contents, chunks, known, chunker, settings, content)?;
        for (i, parts) in found {
            plan.stored_parts.insert(contents[i as usize].file, parts);
            is_shared[i as usize] = true;
        }
    }
    // Those of stored contents served only the search above.
    let cut = |i: u32| !is_shared[i as usize] && contents[i as usize].segment_bits.is_some();
    results.chunks.retain(|(i, _)| cut(*i));

    [plan.packed, plan.packed_listed] =
        order_packed(contents, results.sketches, &is_shared, settings);
    let packed = plan.packed.iter().chain(&plan.packed_listed);
    let tail_starts = packed.filter(|p| p.from > 0);
    plan.tail_starts = tail_starts.map(|p| (p.file, p.from)).collect();

    let (plans, clusters) = PartMatcher {
        contents,
        chunks: results.chunks,
        tail_starts: &plan.tail_starts,
        known: known.as_ref(),
    }
    .find_shared(settings, chunker, content)?;
    (plan.plans, plan.clusters) = (plans, clusters);
    Ok(plan)
}

/// Returns true if a content is split into chunks.
fn is_cut(
    candidate: &DedupeCandidate,
    known: Option<&BaseIndex<'_>>,
    settings: &DedupeSettings<'_>,
) -> bool {
    let has_stored = known.is_some_and(|known| !known.stored.is_empty());
    candidate.segment_bits.is_some() || has_stored && takes_blocks(candidate, settings)
}

/// Reads the contents and computes what the analysis compares.
fn scan_contents(
    contents: &[DedupeCandidate],
    settings: &DedupeSettings<'_>,
    known: Option<&BaseIndex<'_>>,
    chunker: Chunker,
    content: &(dyn Fn(InodeId) -> Result<FileContent> + Sync),
) -> Result<ScanResults> {
    let mut sizes: HashMap<u64, u32> = HashMap::new();
    let dedupe = settings.dedupe != Dedupe::Off;
    if dedupe {
        for candidate in contents {
            *sizes.entry(candidate.size).or_default() += 1;
        }
    }
    let request = |candidate: &DedupeCandidate| ScanRequest {
        duplicate_key: sizes.get(&candidate.size).is_some_and(|n| *n > 1),
        known: known.filter(|known| known.has_size(candidate.size)),
        sums: settings.sums,
        sketch: if candidate.tail {
            Some(tail_start(candidate.size, settings))
        } else {
            (dedupe && candidate.packed && candidate.size <= SKETCH_MAX).then_some(0)
        },
        chunks: settings.dedupe == Dedupe::Content && (is_cut(candidate, known, settings)),
    };
    let next_range = |i: usize| {
        let candidate = &contents[i];
        if !request(candidate).any() {
            return None;
        }
        // Fits: at most some KiB. For longer ranges the kernel reads ahead by itself.
        let len = candidate.size.min(READAHEAD_MAX) as usize;
        Some(PrefetchRange::new(content(candidate.file).ok()?, 0, len))
    };
    let window = ReadaheadWindow::default();
    let scan = |i: usize, context: &mut WorkerContext, results: &mut ScanResults| -> Result<()> {
        let candidate = &contents[i];
        let request = request(candidate);
        if !(request.any() || candidate.auto) {
            return Ok(());
        }
        if request.any() {
            window.advise(i, contents.len(), &mut context.readahead, &next_range);
        }
        let content = content(candidate.file)?;
        // Fits: inodes are counted in 32 bits.
        let i = i as u32;
        if candidate.auto {
            let choice = context.choose(candidate, &content, settings)?;
            if choice != Choice::Default {
                results.choices.push((i, choice));
            }
        }
        if !request.any() {
            return Ok(());
        }
        let chunker = request.chunks.then_some(chunker);
        context.scan(
            (i, candidate),
            content,
            &request,
            chunker,
            results,
            settings,
        )
    };
    let (threads, progress) = (settings.threads, settings.progress);
    let results = parallel(contents.len(), threads, progress, &scan)?;
    Ok(merge_results(results))
}

/// Orders the files and tails of the packed inode, similar ones next to each other: those that no start reads, then the
/// others. No file of one part is the neighbour of a similar one of the other.
fn order_packed(
    contents: &[DedupeCandidate],
    sketches: Vec<(u32, Sketch)>,
    is_shared: &[bool],
    settings: &DedupeSettings<'_>,
) -> [Vec<PackedFile>; 2] {
    let mut sketches = sketches.into_iter().peekable();
    // Listed contents follow all others.
    let mut parts = [false, true].map(|listed| {
        let packed: Vec<u32> = (0..contents.len())
            .filter(|i| contents[*i].listed == listed)
            .filter(|i| (contents[*i].packed || contents[*i].tail) && !is_shared[*i])
            .map(|i| i as u32)
            .collect();
        let sketches: Vec<Option<Sketch>> = packed
            .iter()
            .map(|i| {
                while sketches.next_if(|(of, _)| of < i).is_some() {}
                Some(sketches.next_if(|(of, _)| of == i)?.1)
            })
            .collect();
        order_part(contents, &packed, &sketches, settings)
    });
    let packed_bytes = parts.iter().flatten().map(|file| file.len).sum();
    let cuts = Cuts::new(
        settings.fragment_cut,
        settings.fragment_cluster,
        packed_bytes,
        contents.iter().map(|c| c.size).sum(),
    );
    for file in parts.iter_mut().flatten() {
        // The sketch of a file stays the same in most versions of it. Files that are similar to the one before share a
        // cluster with it.
        let hash = file.value.wrapping_mul(0x9E37_79B1);
        file.packed.cut = file.value != 0 && !file.follows && cuts.has(hash, file.len);
    }
    parts.map(|part| part.into_iter().map(|file| file.packed).collect())
}

/// File or tail of the packed inode, with what decides about a cut before it.
struct OrderedPart {
    packed: PackedFile,
    /// Length of the packed part in bytes.
    len: u64,
    /// First value of the sketch.
    value: u32,
    /// Similar to the file before it.
    follows: bool,
}

/// Orders some files and tails of the packed inode, similar ones next to each other.
fn order_part(
    contents: &[DedupeCandidate],
    packed: &[u32],
    sketches: &[Option<Sketch>],
    settings: &DedupeSettings<'_>,
) -> Vec<OrderedPart> {
    let scan = |i: usize| {
        let candidate = &contents[packed[i] as usize];
        (candidate.name, candidate.size)
    };
    let order = similarity::order(sketches, &scan);
    let file = |p: &similarity::OrderedFile| {
        let candidate = &contents[packed[p.i as usize] as usize];
        let from = match candidate.tail {
            // Fits: a segment is a few MiB.
            true => tail_start(candidate.size, settings) as u32,
            false => 0,
        };
        let [value, ..] = sketches[p.i as usize].unwrap_or_default();
        OrderedPart {
            packed: PackedFile {
                file: candidate.file,
                from,
                similar: p.similar,
                cut: false,
            },
            len: candidate.size - u64::from(from),
            value,
            follows: p.follows,
        }
    };
    // A tail without a similar neighbour stays with its file.
    let stays = |part: &OrderedPart| part.packed.from > 0 && !part.packed.similar;
    order.iter().map(file).filter(|part| !stays(part)).collect()
}

/// Content with the storage decisions of `choice` applied.
fn with_choice(
    candidate: &DedupeCandidate,
    choice: Choice,
    settings: &DedupeSettings<'_>,
) -> DedupeCandidate {
    match choice {
        Choice::Default => *candidate,
        Choice::Fast => DedupeCandidate {
            policy: PolicyId::FAST,
            algorithm: settings
                .dense_and_fast
                .map(|[_, fast]| fast.method.algorithm()),
            ..*candidate
        },
        Choice::Stored => DedupeCandidate {
            policy: PolicyId::STORED,
            packed: false,
            tail: false,
            segment_bits: None,
            algorithm: None,
            ..*candidate
        },
    }
}

/// Start of the tail of a content that may go into the packed inode. It is block-aligned, so the
/// part before it can end there.
fn tail_start(size: u64, settings: &DedupeSettings<'_>) -> u64 {
    let from = size.saturating_sub(settings.tail_len);
    from - from % settings.block
}

/// Merges the results of the workers: keys are sorted, everything else is in the order of the
/// contents.
fn merge_results(parts: Vec<ScanResults>) -> ScanResults {
    let mut all = ScanResults::default();
    for part in parts {
        all.keys.extend(part.keys);
        all.in_base.extend(part.in_base);
        all.sketches.extend(part.sketches);
        all.chunks.extend(part.chunks);
        all.choices.extend(part.choices);
    }
    all.keys.sort_unstable();
    all.sketches.sort_unstable_by_key(|(i, _)| *i);
    all.chunks.sort_unstable_by_key(|(i, _)| *i);
    all
}

/// Chunker of the default length, or of longer chunks if `total` bytes would exceed the memory for
/// chunks.
fn chunker(total: u64, settings: &DedupeSettings<'_>) -> Chunker {
    let mut bits = DEFAULT_CHUNK_BITS;
    while (total >> bits) * shared_runs::CHUNK_COST > settings.memory {
        bits += 1;
    }
    Chunker::new(bits)
}

/// Data to compute when a content is read.
struct ScanRequest<'a> {
    /// Compute the digest, because other contents have the same size.
    duplicate_key: bool,
    /// Compute the digest, because a file of the base has the same size.
    known: Option<&'a BaseIndex<'a>>,
    /// Compute the checksum if the content is in the base.
    sums: bool,
    /// Compute the sketch of the data from this position on.
    sketch: Option<u64>,
    /// Split the content into chunks.
    chunks: bool,
}

impl ScanRequest<'_> {
    /// True if the content has to be read.
    fn any(&self) -> bool {
        self.duplicate_key || self.known.is_some() || self.sketch.is_some() || self.chunks
    }
}

/// Hashers that are updated while a content is read.
#[derive(Default)]
struct Digests {
    hasher: Option<blake3::Hasher>,
    sum: Option<Xxh3>,
}

impl Digests {
    fn update(&mut self, bytes: &[u8]) {
        if let Some(hasher) = &mut self.hasher {
            hasher.update(bytes);
        }
        if let Some(sum) = &mut self.sum {
            sum.update(bytes);
        }
    }
}

impl WorkerContext {
    fn choose(
        &mut self,
        candidate: &DedupeCandidate,
        content: &FileContent,
        settings: &DedupeSettings<'_>,
    ) -> Result<Choice> {
        let chooser = match &mut self.chooser {
            Some(chooser) => chooser,
            none => none.insert(Chooser::new(
                settings.dense_and_fast,
                settings.entropy_coding,
            )?),
        };
        chooser.choose(content, candidate.size, candidate.packed)
    }

    fn scan(
        &mut self,
        (i, candidate): (u32, &DedupeCandidate),
        content: FileContent,
        request: &ScanRequest<'_>,
        chunker: Option<Chunker>,
        results: &mut ScanResults,
        settings: &DedupeSettings<'_>,
    ) -> Result<()> {
        let mut digests = Digests {
            hasher: (request.duplicate_key || request.known.is_some()).then(blake3::Hasher::new),
            sum: (request.known.is_some() && request.sums).then(sum),
        };
        if let Some(chunker) = chunker {
            let sampler = &mut self.sampler;
            let mut ratio = |bytes: &[u8]| sample(sampler, bytes);
            let chunks = shared_runs::chunks(
                &content,
                candidate.size,
                chunker,
                &mut self.buf,
                &mut |bytes| {
                    digests.update(bytes);
                    settings.progress.check()
                },
                &mut ratio,
            )?;
            results.chunks.push((i, chunks));
            if let Some(from) = request.sketch {
                // Fits: a tail is shorter than a cluster.
                let end = &mut self.buf[..(candidate.size - from) as usize];
                content.open()?.read_exact(end, from)?;
                results.sketches.push((i, chunking::sketch(end)));
            }
        } else {
            read_through(&content, candidate.size, &mut self.buf, &mut |bytes| {
                digests.update(bytes);
                if request.sketch.is_some() {
                    results.sketches.push((i, chunking::sketch(bytes)));
                }
                settings.progress.check()
            })?;
        }
        let Some(mut hasher) = digests.hasher else {
            return Ok(());
        };
        if let Some(known) = request.known
            && let Some(nid) = known.get(candidate.size, &hasher)
        {
            let sum = digests.sum.map(|sum| sum.digest());
            results.in_base.push((i, nid, sum));
        }
        if request.duplicate_key {
            let key = content_key(candidate.size, candidate.policy, &mut hasher);
            results.keys.push((key, i));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::progress::Progress;
    use std::num::NonZeroU8;

    /// Regression: a stop request was checked only between files, so a build of a sparse file of 1
    /// TiB ran for half an hour after it.
    #[test]
    fn a_stop_request_ends_the_scan_within_a_file() {
        for dedupe in [Dedupe::Files, Dedupe::Content] {
            let progress = Progress::default();
            let settings = DedupeSettings {
                dedupe,
                tail_len: 4096,
                fragment_cut: None,
                fragment_cluster: 16 << 10,
                memory: 16 << 20,
                base_memory: 1 << 20,
                block: 4096,
                threads: 1,
                dense_and_fast: None,
                entropy_coding: false,
                shares_stored: false,
                chunk: None,
                sums: false,
                progress: &progress,
            };
            let content = |file| DedupeCandidate {
                file,
                name: 0,
                policy: PolicyId::DEFAULT,
                size: 8 << 20,
                packed: false,
                tail: false,
                auto: false,
                listed: false,
                segment_bits: NonZeroU8::new(23),
                algorithm: None,
            };
            let opened = |_: InodeId| {
                progress.stop();
                Ok(FileContent::Bytes(vec![0; 8 << 20].into()))
            };
            let found = find_duplicates(vec![content(1), content(2)], &settings, None, &opened);
            assert!(found.is_err());
        }
    }
}
