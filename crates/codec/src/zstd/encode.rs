//! Zstandard encoder: matches are found once, and blocks are built around the end of the output.
//!
//! ```text
//!  input ──► sequences (our match finder, chunk by chunk; or the library, over the estimated input)
//!              └──► blocks, split where that is smaller, written as they are complete
//!                     └──► the last block: plan, move its end, plan; written once, when it fits
//! ```
//!
//! Planning needs only counts, so that moving the end of the output costs almost nothing, and no bit is written
//! twice. Our match finders continue where they stopped, so that only a few bytes past the end of an output are
//! searched twice. At the other levels the library finds the matches in the estimated input, and one of our finders
//! continues after it (`super::continuation`).

use zstd_sys::{ZSTD_getCParams, ZSTD_strategy};

use super::bits::BIT;
use super::block::{
    BlockCoder, BlockPlan, BlockStats, ParsePosition, RepeatOffsets, Sequence, grow, shrink,
};
use super::compressor::Compressor;
use super::double_hash::DoubleHash;
use super::library::BLOCK_CONTENT_MAX;
use super::library_finder::{LibraryFinder, TUNED_MAX};
use super::row_hash::RowHash;
use super::sequences::{MatchFinder, SequenceStore};
use super::single_hash::SingleHash;
use crate::encode::bounded_input;
use crate::size_search::SizeSearch;
use crate::{Encoder, EncoderSpec, Fit, TailFit, Trim};

/// Magic number, and a descriptor without content size, checksum and dictionary.
const FRAME: [u8; 5] = [0x28, 0xb5, 0x2f, 0xfd, 0];

/// Length of magic number, descriptor and window. Unit: bytes.
const FRAME_HEADER: usize = 6;

/// Length of a block header. Unit: bytes.
const BLOCK_HEADER: usize = 3;

/// Granularity of block splits, counted from the block's start. Unit: bytes of content.
const SEGMENT: usize = 8 << 10;

/// Output size below which there is only one block: a second set of tables does not pay. Unit: bytes.
const SPLIT_ROOM: usize = 24 << 10;

/// Input per output before any output is known.
const FIRST_RATIO: f64 = 2.8;

/// Smallest length to which a last block is trimmed. Unit: bytes.
const TRIM_MIN: usize = 256;

/// A trimmed output may be shorter than possible by this fraction of its length.
const TRIM_SLACK: usize = 128;

/// Length of input that is not worth blocks of our own. Unit: bytes.
const SHORT: usize = 64;

/// Encoder with its match finder and block writer.
pub(crate) struct ZstdEncoder {
    engine: FinderKind,
    /// Compressor for tiny input, for which the library returns no matches.
    plain: Compressor,
    search: SizeSearch,
    store: SequenceStore,
    coder: BlockCoder,
    out: Vec<u8>,
    ratio: f64,
    input_max: usize,
    window_log: u32,
}

/// Match finder of a level.
enum FinderKind {
    Ours(Box<dyn MatchFinder>),
    Library(Box<LibraryFinder>),
}

impl FinderKind {
    /// Returns the finder that can continue.
    fn finder(&mut self) -> &mut dyn MatchFinder {
        match self {
            FinderKind::Ours(finder) => &mut **finder,
            FinderKind::Library(library) => &mut library.tail,
        }
    }
}

impl ZstdEncoder {
    pub(crate) fn new(spec: &EncoderSpec) -> Option<Self> {
        let window_log = spec.match_distance_max().ilog2();
        let reach = 1 << window_log;
        // The library adapts its tables to the given length, which is an estimate here and should not matter. Above
        // the limit it has weaker settings from level 13 on, and most files are shorter.
        let length = (3 * spec.cluster).min(TUNED_MAX);
        // SAFETY: no preconditions.
        let tuned = unsafe { ZSTD_getCParams(spec.level, length as u64, 0) };
        let four = tuned.minMatch <= 4;
        let engine = match tuned.strategy {
            // Small outputs hold little input to search: two tables find more in about the same time.
            ZSTD_strategy::ZSTD_fast if spec.level <= 1 && spec.cluster >= SINGLE_MIN => {
                FinderKind::Ours(Box::new(SingleHash::new(reach)?))
            }
            ZSTD_strategy::ZSTD_fast | ZSTD_strategy::ZSTD_dfast => {
                FinderKind::Ours(Box::new(DoubleHash::new(spec.cluster, reach, four)?))
            }
            // Small outputs hold little input to search: there the library's chains find more.
            ZSTD_strategy::ZSTD_greedy | ZSTD_strategy::ZSTD_lazy | ZSTD_strategy::ZSTD_lazy2
                if spec.cluster >= ROWS_MIN =>
            {
                let depth = tuned.strategy as u32 - ZSTD_strategy::ZSTD_greedy as u32;
                let rows = RowHash::for_cluster(spec.cluster, reach, tuned.searchLog, depth, four)?;
                FinderKind::Ours(Box::new(rows))
            }
            _ => FinderKind::Library(Box::new(LibraryFinder::new(spec, window_log, &tuned)?)),
        };
        Some(Self {
            engine,
            plain: Compressor::new(spec.level, window_log)?,
            search: SizeSearch::new(SHORT, 1.5),
            store: SequenceStore::default(),
            coder: BlockCoder::new(),
            out: Vec::new(),
            ratio: FIRST_RATIO,
            input_max: spec.input_max,
            window_log,
        })
    }

    /// Copies the frame to `dst` and updates the ratio.
    fn done(&mut self, end: TailFit, dst: &mut [u8]) -> TailFit {
        let fit = end.fit;
        dst[..fit.written].copy_from_slice(&self.out[..fit.written]);
        if fit.written * 8 >= dst.len() * 7 {
            self.ratio = fit.consumed as f64 / fit.written as f64;
            if let FinderKind::Library(library) = &mut self.engine {
                library.tail.learn(fit.consumed);
            }
        }
        end
    }

    /// Lets the library write the frame, and searches for the input that fits.
    fn search(&mut self, src: &[u8], dst: &mut [u8]) -> Fit {
        let plain = &mut self.plain;
        self.search
            .run(src, dst, |len, out| plain.compress(&src[..len], out))
    }

    /// Returns the largest content of one block. Unit: bytes.
    fn block_max(&self) -> usize {
        BLOCK_CONTENT_MAX.min(1 << self.window_log)
    }

    /// Builds the frame of `input[at..end]` from the sequences. `trim` applies to a frame of all of it.
    fn frame(
        &mut self,
        input: &[u8],
        (at, end): (usize, usize),
        mut room: usize,
        trim: Option<&Trim>,
    ) -> TailFit {
        let most = self.block_max();
        let src = &input[at..end];
        let Self {
            store,
            coder,
            out,
            engine,
            ratio,
            ..
        } = self;
        let mut source = SequenceSource {
            store,
            finder: engine.finder(),
            data: &input[..end],
            at,
            ratio: *ratio,
        };
        coder.reset();
        // A block that is emitted and then does not fit is never larger than its content and some tables.
        if out.len() < room + 2 * BLOCK_CONTENT_MAX {
            out.resize(room + 2 * BLOCK_CONTENT_MAX, 0);
        }
        out[..5].copy_from_slice(&FRAME);
        out[5] = ((self.window_log - 10) << 3) as u8;

        let mut pos = FRAME_HEADER;
        let mut last_header = None;
        let mut consumed = 0;
        let mut trimmed = false;
        let mut open = OpenBlock::new(ParsePosition::START, RepeatOffsets::START);
        loop {
            let mut left = room.saturating_sub(pos + BLOCK_HEADER);
            let done = open.fill(&mut source, consumed, most, room >= SPLIT_ROOM, left);
            let plan = coder.plan(&open.stats);
            if open.over && !done && plan.size + room / SPARE < left {
                // The estimate was too high.
                open.correct(plan.size, left);
                continue;
            }
            let content = open.stats.content;
            if content == 0 {
                break;
            }
            let body = pos + BLOCK_HEADER;
            let whole = body + plan.size.min(content);
            if let Some(trim) = trim
                && consumed + content == src.len()
                && whole <= room
                && let Some(shorter) = trim.target(whole).filter(|&n| n > body + TRIM_MIN)
            {
                room = shorter;
                left = room - body;
                trimmed = true;
            }
            // A coded block has to be smaller than its content.
            let mut raw = plan.size >= content;
            let mut stop = usize::MAX;
            if !raw && plan.size <= left {
                stop = coder.emit(
                    &plan,
                    open.seqs(source.store),
                    open.literals(source.store),
                    out,
                    body,
                );
                raw = stop - body >= content;
            }
            if raw && content <= left {
                stop = body + content;
                out[body..stop].copy_from_slice(&src[consumed..consumed + content]);
                open.end_repeats = open.start_repeats;
            }
            if stop > room {
                // Bytes that do not fit are encoded anyway; a slightly shorter output is acceptable.
                let slack = if trimmed { room / TRIM_SLACK } else { 0 };
                if let Some((kind, stop)) = open.finish(
                    source.store,
                    coder,
                    plan,
                    out,
                    (body, room, slack),
                    &src[consumed..],
                ) {
                    put_header(out, pos, kind, stop - body);
                    last_header = Some(pos);
                    pos = stop;
                    consumed += open.stats.content;
                }
                break;
            }
            put_header(out, pos, if raw { 0 } else { 2 }, stop - body);
            if !raw {
                coder.commit(plan, open.end.seqs > open.start.seqs);
            }
            last_header = Some(pos);
            pos = stop;
            consumed += content;
            if consumed == src.len() {
                break;
            }
            open = open.next(&mut source);
        }
        let fit = match last_header {
            Some(header) => {
                out[header] |= 1;
                Fit {
                    consumed,
                    written: pos,
                }
            }
            None => Fit::NOTHING,
        };
        TailFit { fit, trimmed }
    }
}

/// Fraction of the output that may stay empty without another attempt to fill it.
const SPARE: usize = 1024;

/// Largest relative error of an estimate, as a fraction.
const SLACK: u64 = 64;

/// Output size from which on one hash table finds the matches of level 1. Unit: bytes.
const SINGLE_MIN: usize = 16 << 10;

/// Output size from which on row hashes find the matches. Unit: bytes.
const ROWS_MIN: usize = 32 << 10;

/// Source of sequences for blocks.
struct SequenceSource<'a> {
    store: &'a mut SequenceStore,
    finder: &'a mut dyn MatchFinder,
    /// Input up to the largest end of the frame, and the frame's start.
    data: &'a [u8],
    at: usize,
    /// Input per output, as far as known.
    ratio: f64,
}

impl SequenceSource<'_> {
    /// Ensures that there are sequences for everything before `until`, counted from the start of the frame.
    fn pull(&mut self, until: usize, run: usize) {
        self.store
            .pull(self.finder, self.data, self.at + until, run);
    }

    /// Returns the content that a block should reach before its size is estimated again.
    fn goal(&self, open: &OpenBlock, split: bool, most: usize, left: usize) -> usize {
        let unit = if split { SEGMENT } else { most };
        let content = open.stats.content;
        // Matches that do not fit are searched again for the next frame.
        let fits = if content == 0 {
            (left as f64 * self.ratio * FIRST_PART) as usize
        } else {
            let spare = open.limit.saturating_sub(open.price) as f64;
            (spare * content as f64 / open.price.max(1) as f64) as usize
        };
        unit.min(fits + fits / 32 + SMALL_STEP)
    }
}

/// Fraction of the estimated content that is taken in the first step.
const FIRST_PART: f64 = 0.9;

/// Added to the content that should still fit. Unit: bytes.
const SMALL_STEP: usize = 64;

/// Block that is being filled.
struct OpenBlock {
    start: ParsePosition,
    end: ParsePosition,
    start_repeats: RepeatOffsets,
    end_repeats: RepeatOffsets,
    stats: BlockStats,
    /// Estimated size, and the size above which the block counts as too large. Unit: bits.
    price: u64,
    limit: u64,
    over: bool,
}

impl OpenBlock {
    fn new(start: ParsePosition, repeats: RepeatOffsets) -> Self {
        Self {
            start,
            end: start,
            start_repeats: repeats,
            end_repeats: repeats,
            stats: BlockStats::new(),
            price: 0,
            limit: 0,
            over: false,
        }
    }

    fn seqs<'a>(&self, store: &'a SequenceStore) -> &'a [Sequence] {
        &store.seqs[self.start.seqs..self.end.seqs]
    }

    fn literals<'a>(&self, store: &'a SequenceStore) -> &'a [u8] {
        &store.literals[self.start.literals..self.end.literals]
    }

    /// Adds segments until the block should end, and returns true if the sequences end. `consumed` is the content of
    /// previous blocks.
    ///
    /// A block ends if it exceeds `left` bytes or holds `most` bytes of content, or if the next segment is smaller in
    /// a block of its own.
    fn fill(
        &mut self,
        source: &mut SequenceSource<'_>,
        consumed: usize,
        most: usize,
        split: bool,
        left: usize,
    ) -> bool {
        let bits = left as u64 * 8;
        self.limit = self.limit.max(bits + bits / SLACK);
        let mut segment = BlockStats::new();
        loop {
            let content = self.stats.content;
            let goal = source.goal(self, split, most, left);
            source.pull(consumed + content + goal, most / 2);
            let (mut end, mut repeats) = (self.end, self.end_repeats);
            let first = content == 0;
            if first || !split {
                let stats = &mut self.stats;
                let goal = content + goal;
                source
                    .store
                    .segment(stats, &mut end, &mut repeats, goal, most, most / 2);
                if stats.content == content {
                    return source.store.ends_at(end);
                }
                self.price = stats.estimate();
            } else {
                segment.clear();
                source.store.segment(
                    &mut segment,
                    &mut end,
                    &mut repeats,
                    goal,
                    most - content,
                    most / 2,
                );
                if segment.content == 0 {
                    return source.store.ends_at(end);
                }
                let mut both = self.stats.clone();
                both.merge(&segment);
                let price = both.estimate();
                if price > self.price + segment.estimate() {
                    return false;
                }
                self.stats = both;
                self.price = price;
            }
            (self.end, self.end_repeats) = (end, repeats);
            self.over = self.price > self.limit;
            if self.over || end.tail > 0 {
                return source.store.ends_at(end);
            }
        }
    }

    /// Corrects the estimate by the size of a plan, which is below the limit.
    fn correct(&mut self, planned: usize, left: usize) {
        self.limit = self.price * left as u64 / planned.max(1) as u64 * 65 / 64;
        self.over = false;
    }

    /// Returns the next block.
    fn next(self, source: &mut SequenceSource<'_>) -> OpenBlock {
        source.store.split(self.end, source.finder);
        OpenBlock::new(
            ParsePosition {
                tail: 0,
                ..self.end
            },
            self.end_repeats,
        )
    }

    /// Moves the block's end to where the output is full except for `slack`, and writes it. Returns its kind and the
    /// position after it.
    fn finish(
        &mut self,
        store: &SequenceStore,
        coder: &mut BlockCoder,
        mut plan: BlockPlan,
        out: &mut [u8],
        (body, room, slack): (usize, usize, usize),
        src: &[u8],
    ) -> Option<(u32, usize)> {
        let left = room.checked_sub(body)?;
        let (seqs, literals) = (
            &store.seqs[..self.end.seqs],
            &store.literals[..self.end.literals],
        );
        let most = self.stats.content;
        // Bytes by which the plan should stay below the limit, for its error.
        let mut margin = 3;
        for _ in 0..ATTEMPTS {
            for _ in 0..ROUNDS {
                let goal = left.saturating_sub(margin);
                let prices = coder.prices(&plan);
                if plan.size > goal {
                    let excess = plan.size + slack / 2 - goal;
                    let saved = shrink(
                        &mut self.stats,
                        &mut self.end,
                        self.start,
                        seqs,
                        literals,
                        &prices,
                        excess as u64 * 8 * BIT,
                    );
                    // The codes remain good enough for slightly less content.
                    if excess <= plan.size / KEEPS && self.stats.literal_count() >= LEAST_LITERALS {
                        plan.size -= (saved / (8 * BIT)) as usize;
                        continue;
                    }
                } else if plan.size + 2 + room / 1000 + slack < goal && self.stats.content < most {
                    let spare = (goal - plan.size) as u64 * 8 * BIT;
                    grow(
                        &mut self.stats,
                        &mut self.end,
                        seqs,
                        literals,
                        &prices,
                        spare,
                        most,
                    );
                } else {
                    break;
                }
                plan = coder.plan(&self.stats);
            }
            let content = self.stats.content;
            // Incompressible content is stored.
            let raw = left.min(src.len()).min(BLOCK_RAW_MAX.min(most));
            if raw > 0 && (content <= raw || plan.size >= content) {
                out[body..body + raw].copy_from_slice(&src[..raw]);
                self.stats.content = raw;
                return Some((0, body + raw));
            }
            if content == 0 {
                return None;
            }
            if plan.size <= left {
                let stop = coder.emit(&plan, self.seqs(store), self.literals(store), out, body);
                if stop <= room && stop - body < content {
                    return Some((2, stop));
                }
                margin += stop.saturating_sub(room) + 1;
            } else {
                margin += plan.size - left + 8;
            }
        }
        None
    }
}

/// A plan is kept if at most this fraction is removed from its block, and this number of literals remains.
const KEEPS: usize = 16;
const LEAST_LITERALS: u32 = 64;

/// Largest number of times that the end of the output is moved by the prices of a plan.
const ROUNDS: usize = 4;

/// Largest number of attempts to shrink an output that is too large.
const ATTEMPTS: usize = 20;

/// Largest content of a stored block. Unit: bytes.
const BLOCK_RAW_MAX: usize = BLOCK_CONTENT_MAX;

/// Writes a block header that is not marked as the last.
fn put_header(out: &mut [u8], pos: usize, kind: u32, size: usize) {
    let value = kind << 1 | (size as u32) << 3;
    out[pos..pos + BLOCK_HEADER].copy_from_slice(&value.to_le_bytes()[..BLOCK_HEADER]);
}

impl Encoder for ZstdEncoder {
    fn reset(&mut self) {
        self.ratio = FIRST_RATIO;
        self.search.reset();
        self.engine.finder().reset();
    }

    fn fit(&mut self, input: &[u8], at: usize, dst: &mut [u8]) -> Fit {
        self.run(input, at, dst, None).fit
    }

    fn fit_tail(&mut self, input: &[u8], at: usize, dst: &mut [u8], trim: &Trim) -> TailFit {
        let trim = Some(trim).filter(|_| input.len() - at <= self.input_max);
        self.run(input, at, dst, trim)
    }

    fn input_max(&self) -> usize {
        self.input_max
    }
}

impl ZstdEncoder {
    /// Writes a frame with as much input as fits.
    fn run(&mut self, input: &[u8], at: usize, dst: &mut [u8], trim: Option<&Trim>) -> TailFit {
        let src = bounded_input(input, at, self.input_max);
        let room = dst.len();
        if room < SHORT || src.len() < SHORT {
            return self.search(src, dst).into();
        }
        let (most, end) = (self.block_max(), at + src.len());
        match &mut self.engine {
            FinderKind::Ours(finder) => {
                finder.begin(at);
                self.store.clear(most);
            }
            FinderKind::Library(library) => {
                let fits = (room, self.ratio);
                let found =
                    library.find_sequences((&input[..end], at), fits, most, &mut self.store);
                if found.is_none() {
                    return self.search(src, dst).into();
                }
            }
        }
        let end = self.frame(input, (at, end), room, trim);
        self.done(end, dst)
    }
}
