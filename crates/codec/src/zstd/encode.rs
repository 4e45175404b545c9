//! The encoder: matches are found once, and the blocks are built here around the end of the output.
//!
//! ```text
//!  input ──► sequences (a finder of ours, piece by piece; or the library, about as much input as should fit)
//!              └──► blocks, split where that is smaller, written as they are complete
//!                     └──► the last block: plan, move its end, plan; written once, when it fits
//! ```
//!
//! Planning needs only counts, so that moving the end of the output costs next to nothing, and no bit is written twice.
//! Our finders go on where they stopped, so that only a few bytes behind the end of an output are matched twice. The
//! library finds the matches at the other levels, in about as much input as should fit; behind that a finder of ours goes
//! on ([`super::tail`]).

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
use crate::encode::bounded_input;
use crate::size_search::SizeSearch;
use crate::{Encoder, EncoderSpec, Fit, TailFit, Trim};

/// Magic number, and a descriptor without content size, checksum and dictionary.
const FRAME: [u8; 5] = [0x28, 0xb5, 0x2f, 0xfd, 0];

/// Magic, descriptor and window. Unit: bytes.
const FRAME_HEADER: usize = 6;

/// Unit: bytes.
const BLOCK_HEADER: usize = 3;

/// Blocks end only at multiples of this, counted from their start, and only when it pays. Unit: bytes of content.
const SEGMENT: usize = 8 << 10;

/// Outputs below this are one block: a second set of tables does not pay. Unit: bytes.
const SPLIT_ROOM: usize = 24 << 10;

/// Input per output before anything is known.
const FIRST_RATIO: f64 = 2.8;

/// A last block is not made shorter than this. Unit: bytes.
const TRIM_MIN: usize = 256;

/// By such a part an output that is ended early may be shorter than it could be.
const TRIM_SLACK: usize = 128;

/// Input below this is not worth own blocks. Unit: bytes.
const SHORT: usize = 64;

/// The encoder.
pub(crate) struct ZstdEncoder {
    engine: FinderKind,
    /// Does what the library's matches cannot be had for: tiny input.
    plain: Compressor,
    search: SizeSearch,
    store: SequenceStore,
    coder: BlockCoder,
    out: Vec<u8>,
    ratio: f64,
    input_max: usize,
    window_log: u32,
}

/// Who finds the matches.
enum FinderKind {
    Ours(Box<dyn MatchFinder>),
    Library(Box<LibraryFinder>),
}

impl FinderKind {
    /// The finder that can be asked for more.
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
        // The library adapts its tables to the length it is given. That is a guess here, and should not matter.
        // For more than that it has other settings, weaker ones from level 13 on, and most files are shorter.
        let length = (3 * spec.cluster).min(TUNED_MAX);
        // SAFETY: no preconditions.
        let tuned = unsafe { ZSTD_getCParams(spec.level, length as u64, 0) };
        let four = tuned.minMatch <= 4;
        let engine = match tuned.strategy {
            ZSTD_strategy::ZSTD_fast | ZSTD_strategy::ZSTD_dfast => {
                FinderKind::Ours(Box::new(DoubleHash::new(spec.cluster, reach, four)?))
            }
            // Small outputs leave little to look at: there the library's chains find more.
            ZSTD_strategy::ZSTD_greedy | ZSTD_strategy::ZSTD_lazy | ZSTD_strategy::ZSTD_lazy2
                if spec.cluster >= ROWS_MIN =>
            {
                let depth = tuned.strategy as u32 - ZSTD_strategy::ZSTD_greedy as u32;
                let rows = RowHash::for_cluster(spec.cluster, reach, tuned.searchLog, depth, four);
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

    /// Hands the frame over.
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

    /// Has the library write the frame, too, and looks for how much fits.
    fn search(&mut self, src: &[u8], dst: &mut [u8]) -> Fit {
        let plain = &mut self.plain;
        self.search
            .run(src, dst, |len, out| plain.compress(&src[..len], out))
    }

    /// The most that one block decodes to. Unit: bytes.
    fn block_max(&self) -> usize {
        BLOCK_CONTENT_MAX.min(1 << self.window_log)
    }

    /// Builds the frame of `input[at..end]` from the parse. `trim` is for a frame of all of it.
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
                // What does not fit is encoded anyway: it may be a little more.
                let slack = if trimmed { room / TRIM_SLACK } else { 0 };
                if let Some((kind, stop)) = open.finish(
                    source.store,
                    coder,
                    plan,
                    out,
                    body,
                    (room, slack),
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

/// An end of the output that is not looked for again: a part of so many.
const SPARE: usize = 1024;

/// By such a part an estimate may be too large.
const SLACK: u64 = 64;

/// Outputs of this size and more have matches found in rows. Unit: bytes.
const ROWS_MIN: usize = 32 << 10;

/// Where sequences come from.
struct SequenceSource<'a> {
    store: &'a mut SequenceStore,
    finder: &'a mut dyn MatchFinder,
    /// The input up to where the frame has to end, and where it starts.
    data: &'a [u8],
    at: usize,
    /// Input per output, as far as is known.
    ratio: f64,
}

impl SequenceSource<'_> {
    /// Sees to it that there is a parse for everything before `until`, counted from the start of the frame.
    fn pull(&mut self, until: usize, run: usize) {
        self.store
            .pull(self.finder, self.data, self.at + until, run);
    }

    /// How much more content a block should take before it is looked at again.
    fn goal(&self, open: &OpenBlock, split: bool, most: usize, left: usize) -> usize {
        let unit = if split { SEGMENT } else { most };
        let content = open.stats.content;
        // What is found and does not fit is found again for the next frame.
        let fits = if content == 0 {
            (left as f64 * self.ratio * FIRST_PART) as usize
        } else {
            let spare = open.limit.saturating_sub(open.price) as f64;
            (spare * content as f64 / open.price.max(1) as f64) as usize
        };
        unit.min(fits + fits / 32 + SMALL_STEP)
    }
}

/// So much of what should fit is taken at once.
const FIRST_PART: f64 = 0.9;

/// Added to what should still fit. Unit: bytes.
const SMALL_STEP: usize = 64;

/// The block that is being filled.
struct OpenBlock {
    start: ParsePosition,
    end: ParsePosition,
    start_repeats: RepeatOffsets,
    end_repeats: RepeatOffsets,
    stats: BlockStats,
    /// Estimated size, and where it counts as too large. Unit: bits.
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

    /// Takes segments until the block should end: it is more than `left` bytes, it has `most` bytes of content, the
    /// next segment is better off in a block of its own, or the parse ends, which is returned. `consumed` is what the
    /// blocks before hold.
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

    /// The plan says that what counted as too large is not.
    fn correct(&mut self, planned: usize, left: usize) {
        self.limit = self.price * left as u64 / planned.max(1) as u64 * 65 / 64;
        self.over = false;
    }

    /// The block behind this one.
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

    /// Moves the block's end to where the output is full but for some `slack`, and writes it. Returns its kind and the position
    /// behind it.
    #[allow(clippy::too_many_arguments)]
    fn finish(
        &mut self,
        store: &SequenceStore,
        coder: &mut BlockCoder,
        mut plan: BlockPlan,
        out: &mut [u8],
        body: usize,
        (room, slack): (usize, usize),
        src: &[u8],
    ) -> Option<(u32, usize)> {
        let left = room.checked_sub(body)?;
        let (seqs, literals) = (
            &store.seqs[..self.end.seqs],
            &store.literals[..self.end.literals],
        );
        let most = self.stats.content;
        // Bytes that the plan should stay below what is left: its error.
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
                    // What is left has codes, which are as good for a little less.
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
            // What cannot be compressed is better off raw.
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

/// A plan stays where no more than such a part is taken from its block, and so many literals are left.
const KEEPS: usize = 16;
const LEAST_LITERALS: u32 = 64;

/// So often the end of the output is moved by the prices of a plan before it is taken as it is.
const ROUNDS: usize = 4;

/// So often an output that turned out too large is made again, smaller.
const ATTEMPTS: usize = 20;

/// Unit: bytes.
const BLOCK_RAW_MAX: usize = BLOCK_CONTENT_MAX;

/// Writes the header of a block: not the last one, so far.
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
    /// Makes a frame.
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
