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

mod chunk;
mod groups;
mod runs;

use crate::build::auto::{Choice, Chooser};
use crate::build::options::Dedupe;
use crate::build::order::{ContentKey, content_key};
use crate::build::pack::input::Input;
use crate::build::pack::spans::FilePlan;
use crate::build::tree::InodeId;
use crate::{Error, Result};
use chunk::{Cutter, Sketch};
use hashbrown::HashMap;
use runs::{Chunks, Run, Shape};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use tuff_codec::EncoderSpec;

/// A content to look at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Content {
    /// Whose.
    pub(crate) file: InodeId,
    /// Unit: bytes, not 0.
    pub(crate) size: u64,
    /// Number of its policy: only contents with equal numbers are stored alike.
    pub(crate) policy: u32,
    /// It goes into the packed inode as a whole.
    pub(crate) packed: bool,
    /// Parts of it may be shared: it is compressed, in segments of so many bytes.
    pub(crate) segment: Option<u64>,
    /// How it is stored is decided from a sample.
    pub(crate) auto: bool,
}

/// How to look.
pub(crate) struct Settings {
    /// What is stored once.
    pub(crate) dedupe: Dedupe,
    /// Memory for chunks. Unit: bytes.
    pub(crate) memory: u64,
    /// Block size. Unit: bytes.
    pub(crate) block: u64,
    /// Workers.
    pub(crate) threads: usize,
    /// Dense and fast compression for those whose storing is decided here.
    pub(crate) two: Option<[EncoderSpec; 2]>,
}

/// What was found.
#[derive(Default)]
pub(crate) struct Survey {
    /// Files with the content of an earlier one, and which that is.
    pub(crate) twins: HashMap<InodeId, InodeId>,
    /// Files of the packed inode in the order of their data, without twins.
    pub(crate) packed: Vec<InodeId>,
    /// Files that are not stored as the options say.
    pub(crate) choices: HashMap<InodeId, Choice>,
    /// Files that share parts, or whose parts others share.
    pub(crate) plans: HashMap<InodeId, FilePlan>,
}

/// What a worker found out about a content.
#[derive(Default)]
struct Facts {
    key: Option<ContentKey>,
    chunks: Option<Chunks>,
    sketch: Option<Sketch>,
    choice: Choice,
}

/// Policies of files that are stored otherwise than the options say are numbered from here.
const CHOICES: u32 = 1 << 30;
/// Sketches are taken of files up to this. Unit: bytes.
const SKETCH_MAX: u64 = 256 << 10;
/// log2 of the usual average length of a chunk. Unit: bytes.
const CHUNK_BITS: u32 = 12;

/// Looks at `contents`, given in the order of their data. `input` opens one; it is asked from several threads.
pub(crate) fn survey(
    contents: &[Content],
    settings: &Settings,
    input: &(dyn Fn(InodeId) -> Result<Input> + Sync),
) -> Result<Survey> {
    let mut sizes: HashMap<u64, u32> = HashMap::new();
    let dedupe = settings.dedupe != Dedupe::Off;
    if dedupe {
        for content in contents {
            *sizes.entry(content.size).or_default() += 1;
        }
    }
    let cutter = cutter(contents, settings);
    let look = |i: usize, tools: &mut Tools| -> Result<Facts> {
        let content = &contents[i];
        let twin = sizes.get(&content.size).is_some_and(|n| *n > 1);
        let sketch = dedupe && content.packed && content.size <= SKETCH_MAX;
        let chunks = settings.dedupe == Dedupe::Content && content.segment.is_some();
        if !(twin || sketch || chunks || content.auto) {
            return Ok(Facts::default());
        }
        let input = input(content.file)?;
        let choice = if content.auto {
            tools.choose(content, &input, settings)?
        } else {
            Choice::Default
        };
        if !(twin || sketch || chunks) {
            return Ok(Facts {
                choice,
                ..Facts::default()
            });
        }
        let facts = tools.look(content, input, twin, sketch, chunks.then_some(cutter))?;
        Ok(Facts { choice, ..facts })
    };
    let mut facts = parallel(contents.len(), settings.threads, &look)?;
    let chosen = contents
        .iter()
        .zip(&facts)
        .map(|(c, f)| chosen(c, f.choice));
    let contents = &chosen.collect::<Vec<Content>>()[..];

    let mut keys: Vec<(ContentKey, usize)> = facts
        .iter()
        .enumerate()
        .filter_map(|(i, f)| Some((f.key?, i)))
        .collect();
    keys.sort_unstable();
    let choices = contents.iter().zip(&facts).map(|(c, f)| (c.file, f.choice));
    let mut survey = Survey {
        choices: choices.filter(|(_, c)| *c != Choice::Default).collect(),
        ..Survey::default()
    };
    for same in keys.chunk_by(|a, b| a.0 == b.0) {
        for (_, i) in &same[1..] {
            survey
                .twins
                .insert(contents[*i].file, contents[same[0].1].file);
            facts[*i] = Facts::default();
        }
    }

    let packed: Vec<usize> = (0..contents.len())
        .filter(|i| contents[*i].packed && !survey.twins.contains_key(&contents[*i].file))
        .collect();
    let sketches: Vec<Option<Sketch>> = packed.iter().map(|i| facts[*i].sketch).collect();
    survey.packed = groups::order(&sketches)
        .into_iter()
        .map(|i| contents[packed[i as usize]].file)
        .collect();

    let chunks: Vec<Option<Chunks>> = facts.into_iter().map(|f| f.chunks).collect();
    let found = runs::find(&chunks);
    let shapes: Vec<Option<Shape>> = contents
        .iter()
        .zip(&chunks)
        .map(|(content, chunks)| {
            Some(Shape {
                file: content.file,
                size: content.size,
                segment: content.segment?,
                policy: content.policy,
                ratio: chunks.as_ref()?.ratio,
            })
        })
        .collect();
    drop(chunks);
    let confirmed = confirm(&found, contents, settings, cutter, input)?;
    survey.plans = runs::settle(&confirmed, &shapes, settings.block);
    Ok(survey)
}

/// A content as it is stored after all.
fn chosen(content: &Content, choice: Choice) -> Content {
    match choice {
        Choice::Default => *content,
        Choice::Fast => Content {
            policy: CHOICES,
            ..*content
        },
        Choice::Stored => Content {
            policy: CHOICES + 1,
            packed: false,
            segment: None,
            ..*content
        },
    }
}

/// Chunks of the usual length, longer ones where so many would not fit into the memory for them.
fn cutter(contents: &[Content], settings: &Settings) -> Cutter {
    let total: u64 = contents
        .iter()
        .filter(|c| c.segment.is_some())
        .map(|c| c.size)
        .sum();
    let mut bits = CHUNK_BITS;
    while (total >> bits) * runs::CHUNK_COST > settings.memory {
        bits += 1;
    }
    Cutter::new(bits)
}

/// Compares runs with what they repeat, each file's on one worker. Those that are none are left out.
fn confirm(
    runs: &[Run],
    contents: &[Content],
    settings: &Settings,
    cutter: Cutter,
    input: &(dyn Fn(InodeId) -> Result<Input> + Sync),
) -> Result<Vec<Run>> {
    let by_file: Vec<&[Run]> = runs.chunk_by(|a, b| a.file == b.file).collect();
    let look = |i: usize, tools: &mut Tools| -> Result<Vec<Run>> {
        let runs = by_file[i];
        let of = |i: u32| &contents[i as usize];
        let file = input(of(runs[0].file).file)?;
        let file_reader = file.open()?;
        let mut out = Vec::new();
        for same in runs.chunk_by(|a, b| a.owner == b.owner) {
            let owner = input(of(same[0].owner).file)?;
            let owner_reader = owner.open()?;
            for run in same {
                let sizes = (of(run.file).size, of(run.owner).size);
                let readers = (&file_reader, &owner_reader);
                let widen = cutter.max() as u64;
                out.extend(runs::confirm(
                    *run,
                    sizes,
                    readers,
                    widen,
                    &mut tools.windows,
                )?);
            }
        }
        Ok(out)
    };
    Ok(parallel(by_file.len(), settings.threads, &look)?.concat())
}

/// What a worker needs again and again.
struct Tools {
    buf: Vec<u8>,
    windows: [Vec<u8>; 2],
    sampler: Option<Box<dyn tuff_codec::EncodeFit>>,
    chooser: Option<Chooser>,
}

impl Tools {
    fn choose(&mut self, content: &Content, input: &Input, settings: &Settings) -> Result<Choice> {
        let chooser = match &mut self.chooser {
            Some(chooser) => chooser,
            none => none.insert(Chooser::new(settings.two)?),
        };
        chooser.choose(input, content.size, content.packed)
    }

    fn look(
        &mut self,
        content: &Content,
        input: Input,
        twin: bool,
        sketch: bool,
        cutter: Option<Cutter>,
    ) -> Result<Facts> {
        let mut facts = Facts::default();
        let mut hasher = twin.then(blake3::Hasher::new);
        if let Some(cutter) = cutter {
            let sampler = &mut self.sampler;
            let mut ratio = |bytes: &[u8]| sample(sampler, bytes);
            facts.chunks = Some(runs::chunks(
                &input,
                content.size,
                cutter,
                &mut self.buf,
                &mut hasher,
                &mut ratio,
            )?);
        } else {
            let reader = input.open()?;
            let mut at = 0;
            while at < content.size {
                // Fits: the buffer does.
                let n = (content.size - at).min(1 << 20) as usize;
                if self.buf.len() < n {
                    self.buf.resize(n, 0);
                }
                reader.read_exact(&mut self.buf[..n], at)?;
                if let Some(hasher) = &mut hasher {
                    hasher.update(&self.buf[..n]);
                }
                if sketch {
                    facts.sketch = Some(chunk::sketch(&self.buf[..n]));
                }
                at += n as u64;
            }
        }
        facts.key = hasher.map(|mut h| content_key(content.size, content.policy, &mut h));
        Ok(facts)
    }
}

/// How much of `bytes` LZ4 puts into a block: sixteenths of a byte per byte. What does not shrink counts as 16.
fn sample(sampler: &mut Option<Box<dyn tuff_codec::EncodeFit>>, bytes: &[u8]) -> u32 {
    const BLOCK: usize = 4096;
    let spec = tuff_codec::EncoderSpec::new(tuff_codec::Method::Lz4, BLOCK);
    if sampler.is_none() {
        *sampler = spec.build().ok();
    }
    let Some(encoder) = sampler else { return 16 };
    let mut out = [0; BLOCK];
    encoder.reset();
    let fit = encoder.fit(&bytes[..bytes.len().min(16 * BLOCK)], 0, &mut out);
    // Fits: at most 16 blocks in one.
    (fit.consumed * 16 / fit.written.max(1)).clamp(16, 256) as u32
}

/// Runs `work` for every index below `count` on `threads` threads; results in the order of the indexes.
fn parallel<T: Send>(
    count: usize,
    threads: usize,
    work: &(dyn Fn(usize, &mut Tools) -> Result<T> + Sync),
) -> Result<Vec<T>> {
    let (next, failed) = (AtomicUsize::new(0), AtomicBool::new(false));
    let done: Mutex<Vec<(usize, Result<T>)>> = Mutex::new(Vec::with_capacity(count));
    let run = || {
        let mut tools = Tools {
            buf: Vec::new(),
            windows: [Vec::new(), Vec::new()],
            sampler: None,
            chooser: None,
        };
        let mut mine = Vec::new();
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            if i >= count || failed.load(Ordering::Relaxed) {
                break;
            }
            let out = work(i, &mut tools);
            if out.is_err() {
                failed.store(true, Ordering::Relaxed);
            }
            mine.push((i, out));
        }
        done.lock()
            .unwrap_or_else(PoisonError::into_inner)
            .append(&mut mine);
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.max(1) {
            scope.spawn(run);
        }
        run();
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_unstable_by_key(|(i, _)| *i);
    done.into_iter().map(|(_, out)| out).collect()
}

/// An input that must be there: contents of streams are not surveyed.
pub(crate) fn readable(input: Option<Input>) -> Result<Input> {
    input.ok_or_else(|| Error::usage("content that cannot be read twice"))
}
