//! A look at all contents before they are packed: which are the same, which have parts in common, which are alike.
//!
//! ```text
//!  contents ──► [workers] digests, chunks, sketches ──► twins ──► runs ──► [workers] compare ──► plans
//!                                                           └──► groups ──► order of the packed inode
//! ```
//!
//! What a survey finds depends on the contents and their order alone: workers only compute, and all decisions are made in
//! the order of the contents, on one thread. Whatever it says is shared was compared: whole files by BLAKE3, parts byte by
//! byte.

mod base_index;
mod chunking;
mod scan;
mod shared_parts;
mod shared_runs;
mod similarity;

pub(crate) use scan::{Content, PackedFile, Settings, parallel, readable, sums};

use crate::auto::{Choice, Chooser};
use crate::base::{BaseClusters, BaseInode, Bases};
use crate::options::Dedupe;
use crate::order::{ContentKey, PolicyId, content_key};
use crate::pack::checksums::sum;
use crate::pack::input::Input;
use crate::pack::shared_clusters::FilePlan;
use crate::readahead::{Stretch, Window};
use crate::tree::InodeId;
use crate::{Error, Result};
use base_index::BaseIndex;
use chunking::{Cutter, Sketch};
use hashbrown::HashMap;
use scan::{Tools, read_through, sample};
use shared_parts::Parts;
use shared_runs::Chunks;
use std::sync::Arc;
use xxhash_rust::xxh3::Xxh3;

/// What was found.
#[derive(Default)]
pub(crate) struct DedupePlan {
    /// Files with the content of an earlier one, and which that is.
    pub(crate) twins: HashMap<InodeId, InodeId>,
    /// Files with the content of one in the base, which that is, and the content's sum.
    pub(crate) based: HashMap<InodeId, (BaseInode, Option<u64>)>,
    /// Files of the packed inode in the order of their data, without twins.
    pub(crate) packed: Vec<PackedFile>,
    /// Files with an end among them, and where it starts. Unit: bytes.
    pub(crate) ends: HashMap<InodeId, u32>,
    /// Files that are not stored as the options say.
    pub(crate) choices: HashMap<InodeId, Choice>,
    /// Files that share parts, or whose parts others share.
    pub(crate) plans: HashMap<InodeId, FilePlan>,
    /// Clusters of the base's files that plans name, by their numbers there.
    pub(crate) clusters: HashMap<u32, BaseClusters>,
}

/// What workers found out, by index of the content. There may be millions of contents, and most have no chunks.
#[derive(Default)]
struct Facts {
    keys: Vec<(ContentKey, u32)>,
    /// Those that the base has.
    based: Vec<(u32, BaseInode, Option<u64>)>,
    sketches: Vec<(u32, Sketch)>,
    chunks: Vec<(u32, Chunks)>,
    /// Those that are not the default.
    choices: Vec<(u32, Choice)>,
}

/// Sketches are taken of files up to this. Unit: bytes.
const SKETCH_MAX: u64 = 256 << 10;
/// No more of a content is asked for before it is read. Unit: bytes.
const ASKED_MAX: u64 = 256 << 10;
/// log2 of the usual average length of a chunk. Unit: bytes.
const CHUNK_BITS: u32 = 12;

/// Looks at `contents`, given in the order of their data. `input` opens one; it is asked from several threads. `base` is the
/// image whose data need not be held again.
pub(crate) fn survey(
    mut contents: Vec<Content>,
    settings: &Settings<'_>,
    base: Option<&Arc<Bases>>,
    input: &(dyn Fn(InodeId) -> Result<Input> + Sync),
) -> Result<DedupePlan> {
    let mut sizes: HashMap<u64, u32> = HashMap::new();
    let dedupe = settings.dedupe != Dedupe::Off;
    if dedupe {
        for content in &contents {
            *sizes.entry(content.size).or_default() += 1;
        }
    }
    let known = base.map(|base| BaseIndex::learn(base, &contents, settings));
    let known = known.transpose()?;
    let parts = known.as_ref().map_or(&[][..], |known| &known.parts);
    let cut = contents.iter().filter(|c| c.segment_bits.is_some());
    let total = cut.map(|c| c.size).sum::<u64>() + parts.iter().map(|f| f.size).sum::<u64>();
    let cutter = cutter(total, settings);
    let wanted = |content: &Content| Wanted {
        duplicate_key: sizes.get(&content.size).is_some_and(|n| *n > 1),
        known: known.as_ref().filter(|known| known.has_size(content.size)),
        sums: settings.sums,
        sketch: if content.end {
            Some(end_of(content.size, settings))
        } else {
            (dedupe && content.packed && content.size <= SKETCH_MAX).then_some(0)
        },
        chunks: settings.dedupe == Dedupe::Content && content.segment_bits.is_some(),
    };
    let soon = |i: usize| {
        let content = &contents[i];
        if !wanted(content).any() {
            return None;
        }
        // Fits: it is at most some KiB; what is longer the kernel reads ahead itself.
        let len = content.size.min(ASKED_MAX) as usize;
        Some(Stretch::new(input(content.file).ok()?, 0, len))
    };
    let window = Window::default();
    let look = |i: usize, tools: &mut Tools, facts: &mut Facts| -> Result<()> {
        let content = &contents[i];
        let wanted = wanted(content);
        if !(wanted.any() || content.auto) {
            return Ok(());
        }
        if wanted.any() {
            window.ask(i, contents.len(), &mut tools.ahead, &soon);
        }
        let input = input(content.file)?;
        // Fits: inodes are counted in 32 bits.
        let i = i as u32;
        if content.auto {
            let choice = tools.choose(content, &input, settings)?;
            if choice != Choice::Default {
                facts.choices.push((i, choice));
            }
        }
        if !wanted.any() {
            return Ok(());
        }
        let cutter = wanted.chunks.then_some(cutter);
        tools.look((i, content), input, &wanted, cutter, facts, settings)
    };
    let mut facts = gathered(parallel(contents.len(), settings, &look)?);
    drop(sizes);

    let mut survey = DedupePlan::default();
    for (i, choice) in std::mem::take(&mut facts.choices) {
        let content = &mut contents[i as usize];
        *content = chosen(content, choice, settings);
        survey.choices.insert(content.file, choice);
    }
    let contents = &contents[..];
    // They need no place of their own.
    let mut elsewhere = vec![false; contents.len()];
    for (i, nid, sum) in std::mem::take(&mut facts.based) {
        let content = &contents[i as usize];
        let stored = content.algorithm.is_none();
        let can = |base: &Bases| Ok::<_, Error>(base.data(nid, stored)?.is_some());
        if base.map_or(Ok(false), |base| can(base))? {
            survey.based.insert(content.file, (nid, sum));
            elsewhere[i as usize] = true;
        }
    }
    for same in facts.keys.chunk_by(|a, b| a.0 == b.0) {
        for (_, i) in &same[1..] {
            let first = contents[same[0].1 as usize].file;
            survey.twins.insert(contents[*i as usize].file, first);
            elsewhere[*i as usize] = true;
        }
    }
    facts.keys = Vec::new();
    facts.chunks.retain(|(i, _)| !elsewhere[*i as usize]);

    let packed: Vec<u32> = (0..contents.len())
        .filter(|i| (contents[*i].packed || contents[*i].end) && !elsewhere[*i])
        .map(|i| i as u32)
        .collect();
    let mut sketches = facts.sketches.into_iter().peekable();
    let sketches: Vec<Option<Sketch>> = packed
        .iter()
        .map(|i| {
            while sketches.next_if(|(of, _)| of < i).is_some() {}
            Some(sketches.next_if(|(of, _)| of == i)?.1)
        })
        .collect();
    let look = |i: usize| {
        let content = &contents[packed[i] as usize];
        (content.name, content.size)
    };
    let order = similarity::order(&sketches, &look);
    drop(sketches);
    let placed = |p: similarity::Placed| {
        let content = &contents[packed[p.i as usize] as usize];
        let from = match content.end {
            // Fits: a segment is a few MiB.
            true => end_of(content.size, settings) as u32,
            false => 0,
        };
        PackedFile {
            file: content.file,
            from,
            similar: p.similar,
        }
    };
    let all = order.into_iter().map(placed);
    // An end that is alike no other stays with its file.
    survey.packed = all.filter(|p| p.from == 0 || p.similar).collect();
    let ends = survey.packed.iter().filter(|p| p.from > 0);
    survey.ends = ends.map(|p| (p.file, p.from)).collect();
    drop(packed);

    let (plans, clusters) = Parts {
        contents,
        chunks: facts.chunks,
        ends: &survey.ends,
        known: known.as_ref(),
    }
    .shared(settings, cutter, input)?;
    (survey.plans, survey.clusters) = (plans, clusters);
    Ok(survey)
}

/// A content as it is stored after all.
fn chosen(content: &Content, choice: Choice, settings: &Settings<'_>) -> Content {
    match choice {
        Choice::Default => *content,
        Choice::Fast => Content {
            policy: PolicyId::FAST,
            algorithm: settings.two.map(|[_, fast]| fast.method.algorithm()),
            ..*content
        },
        Choice::Stored => Content {
            policy: PolicyId::STORED,
            packed: false,
            end: false,
            segment_bits: None,
            algorithm: None,
            ..*content
        },
    }
}

/// Where the end of a content of `size` bytes starts that may go into the packed inode: at a block, so that what is before
/// it may end there.
fn end_of(size: u64, settings: &Settings<'_>) -> u64 {
    let from = size.saturating_sub(settings.end_len);
    from - from % settings.block
}

/// All facts in the order of the contents, keys in their own.
fn gathered(parts: Vec<Facts>) -> Facts {
    let mut all = Facts::default();
    for part in parts {
        all.keys.extend(part.keys);
        all.based.extend(part.based);
        all.sketches.extend(part.sketches);
        all.chunks.extend(part.chunks);
        all.choices.extend(part.choices);
    }
    all.keys.sort_unstable();
    all.sketches.sort_unstable_by_key(|(i, _)| *i);
    all.chunks.sort_unstable_by_key(|(i, _)| *i);
    all
}

/// Chunks of the usual length, longer ones where `total` bytes in such would not fit into the memory for them.
fn cutter(total: u64, settings: &Settings<'_>) -> Cutter {
    let mut bits = CHUNK_BITS;
    while (total >> bits) * shared_runs::CHUNK_COST > settings.memory {
        bits += 1;
    }
    Cutter::new(bits)
}

/// Why a content is read.
struct Wanted<'a> {
    /// For its digest: another may have it.
    duplicate_key: bool,
    /// The same: the base may have it.
    known: Option<&'a BaseIndex<'a>>,
    /// Then its sum is wanted, too.
    sums: bool,
    /// For a sketch of what begins there.
    sketch: Option<u64>,
    /// For its chunks.
    chunks: bool,
}

impl Wanted<'_> {
    /// True if it is read at all.
    fn any(&self) -> bool {
        self.duplicate_key || self.known.is_some() || self.sketch.is_some() || self.chunks
    }
}

/// A content while it is read: its digest and its sum.
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

impl Tools {
    fn choose(
        &mut self,
        content: &Content,
        input: &Input,
        settings: &Settings<'_>,
    ) -> Result<Choice> {
        let chooser = match &mut self.chooser {
            Some(chooser) => chooser,
            none => none.insert(Chooser::new(settings.two, settings.counts)?),
        };
        chooser.choose(input, content.size, content.packed)
    }

    fn look(
        &mut self,
        (i, content): (u32, &Content),
        input: Input,
        wanted: &Wanted<'_>,
        cutter: Option<Cutter>,
        facts: &mut Facts,
        settings: &Settings<'_>,
    ) -> Result<()> {
        let mut digests = Digests {
            hasher: (wanted.duplicate_key || wanted.known.is_some()).then(blake3::Hasher::new),
            sum: (wanted.known.is_some() && wanted.sums).then(sum),
        };
        if let Some(cutter) = cutter {
            let sampler = &mut self.sampler;
            let mut ratio = |bytes: &[u8]| sample(sampler, bytes);
            let chunks = shared_runs::chunks(
                &input,
                content.size,
                cutter,
                &mut self.buf,
                &mut |bytes| {
                    digests.update(bytes);
                    settings.progress.check()
                },
                &mut ratio,
            )?;
            facts.chunks.push((i, chunks));
            if let Some(from) = wanted.sketch {
                // Fits: an end is shorter than a cluster.
                let end = &mut self.buf[..(content.size - from) as usize];
                input.open()?.read_exact(end, from)?;
                facts.sketches.push((i, chunking::sketch(end)));
            }
        } else {
            read_through(&input, content.size, &mut self.buf, &mut |bytes| {
                digests.update(bytes);
                if wanted.sketch.is_some() {
                    facts.sketches.push((i, chunking::sketch(bytes)));
                }
                settings.progress.check()
            })?;
        }
        let Some(mut hasher) = digests.hasher else {
            return Ok(());
        };
        if let Some(known) = wanted.known
            && let Some(nid) = known.get(content.size, &hasher)
        {
            let sum = digests.sum.map(|sum| sum.digest());
            facts.based.push((i, nid, sum));
        }
        if wanted.duplicate_key {
            let key = content_key(content.size, content.policy, &mut hasher);
            facts.keys.push((key, i));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::progress::Progress;
    use std::num::NonZeroU8;

    /// Seen: a build of a file of a terabyte, most of it a hole, went on for half an hour after it was asked to stop. Cost: it
    /// had to be killed. Cause: only a next file's beginning looked whether to stop. Cure: every piece that is read does.
    #[test]
    fn a_stop_ends_a_survey_within_a_file() {
        for dedupe in [Dedupe::Files, Dedupe::Content] {
            let progress = Progress::default();
            let settings = Settings {
                dedupe,
                end_len: 4096,
                memory: 16 << 20,
                base_memory: 1 << 20,
                block: 4096,
                threads: 1,
                two: None,
                counts: false,
                sums: false,
                progress: &progress,
            };
            let content = |file| Content {
                file,
                name: 0,
                policy: PolicyId::DEFAULT,
                size: 8 << 20,
                packed: false,
                end: false,
                auto: false,
                segment_bits: NonZeroU8::new(23),
                algorithm: None,
            };
            let opened = |_: InodeId| {
                progress.stop();
                Ok(Input::Bytes(vec![0; 8 << 20].into()))
            };
            let found = survey(vec![content(1), content(2)], &settings, None, &opened);
            assert!(found.is_err());
        }
    }
}
