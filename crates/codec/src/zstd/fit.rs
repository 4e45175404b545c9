//! The encoder: the library finds the matches, once, and the blocks are built here around the end of the output.
//!
//! ```text
//!  input ──► sequences (library, a little more input than should fit)
//!              └──► blocks, split where that is smaller, written as they are complete
//!                     └──► the last block: plan, move its end, plan; written once, when it fits
//! ```
//!
//! Planning needs only counts, so that moving the end of the output costs next to nothing: no input is matched twice
//! and no bit is written twice, unless the prediction of how much input is needed was too low.

use std::ffi::c_int;

use zstd_sys::{
    ZSTD_Sequence, ZSTD_cParameter, ZSTD_generateSequences, ZSTD_getCParams, ZSTD_strategy,
};

use super::bits::BIT;
use super::block::{Coder, Cut, Plan, Repeats, Seq, Stats, grow, shrink};
use super::pairs::Pairs;
use super::{BLOCK, Compressor, good};
use crate::lz4::piece;
use crate::search::Search;
use crate::{EncodeFit, EncoderSpec, Fit};

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

/// How much more input is parsed than should fit.
const MARGIN: f64 = 1.10;

/// Input below this is not worth own blocks. Unit: bytes.
const SHORT: usize = 64;

/// The encoder.
pub(crate) struct Zstd {
    finder: Compressor,
    /// Finds the matches instead, at the levels where it is the better one.
    pairs: Option<Pairs>,
    /// Does what the library's matches cannot be had for: tiny input.
    plain: Compressor,
    search: Search,
    found: Vec<ZSTD_Sequence>,
    parse: Parse,
    coder: Coder,
    out: Vec<u8>,
    ratio: f64,
    window: usize,
    window_log: u32,
}

/// Input as literals and matches.
#[derive(Default)]
struct Parse {
    seqs: Vec<Seq>,
    /// All literals, one after the other; those after the last match, too. Longer than that, for copies in steps.
    literals: Vec<u8>,
    /// Literals in all.
    len: usize,
    /// Literals that were taken from a sequence, which are blocks of their own.
    moved: Vec<(usize, u32)>,
}

/// Short runs of literals are copied as so many bytes, which is one instruction.
const STEP: usize = 16;

/// How an attempt ended.
enum Outcome {
    Done(Fit),
    /// There is room for more than what was parsed, which takes so many bytes.
    Short(usize),
}

impl Zstd {
    pub(crate) fn new(spec: &EncoderSpec) -> Option<Self> {
        let window_log = spec.history().ilog2();
        let finder = Compressor::new(spec.level, window_log)?;
        // The library adapts its tables to the length it is given. That is a guess here, and should not matter.
        // SAFETY: no preconditions.
        let tuned = unsafe { ZSTD_getCParams(spec.level, (3 * spec.cluster) as u64, 0) };
        for (parameter, value) in [
            (ZSTD_cParameter::ZSTD_c_chainLog, tuned.chainLog),
            (ZSTD_cParameter::ZSTD_c_hashLog, tuned.hashLog),
            (ZSTD_cParameter::ZSTD_c_searchLog, tuned.searchLog),
            (ZSTD_cParameter::ZSTD_c_minMatch, tuned.minMatch),
            (ZSTD_cParameter::ZSTD_c_targetLength, tuned.targetLength),
            (ZSTD_cParameter::ZSTD_c_strategy, tuned.strategy as u32),
        ] {
            finder.set(parameter, c_int::try_from(value).ok()?)?;
        }
        // The library's own splitter would need the block's bytes, which are never made.
        finder.set(ZSTD_cParameter::ZSTD_c_experimentalParam13, 2)?;
        let pairs = tuned.strategy == ZSTD_strategy::ZSTD_dfast;
        Some(Self {
            finder,
            pairs: pairs.then(|| Pairs::new(1 << window_log, tuned.minMatch <= 4)),
            plain: Compressor::new(spec.level, window_log)?,
            search: Search::new(SHORT, 1.5),
            found: Vec::new(),
            parse: Parse::default(),
            coder: Coder::new(),
            out: Vec::new(),
            ratio: FIRST_RATIO,
            window: spec.window,
            window_log,
        })
    }

    /// The most that one block decodes to. Unit: bytes.
    fn block_max(&self) -> usize {
        BLOCK.min(1 << self.window_log)
    }

    /// Has the library parse `src`.
    fn find(&mut self, src: &[u8]) -> Option<()> {
        let bound = src.len() / 3 + src.len() / 1024 + 2;
        self.found.clear();
        self.found.reserve(bound);
        // SAFETY: the context is alive and `&mut self` makes it ours; `src` is a slice of the length passed; `found` has
        // room for `bound` sequences, and the library checks that.
        let n = good(unsafe {
            ZSTD_generateSequences(
                self.finder.as_ptr(),
                self.found.as_mut_ptr(),
                self.found.capacity(),
                src.as_ptr().cast(),
                src.len(),
            )
        })?;
        // SAFETY: the library has written the first `n` sequences, which are plain data.
        unsafe { self.found.set_len(n) };
        self.parse.fill(src, &self.found, self.block_max());
        Some(())
    }

    /// Parses `src[..len]`, which is `input[at..at + len]`. `again` says that a shorter part of it was parsed before.
    fn parse(&mut self, input: &[u8], at: usize, len: usize, again: bool) -> Option<()> {
        let most = self.block_max();
        let Some(pairs) = &mut self.pairs else {
            return self.find(&input[at..at + len]);
        };
        let parse = &mut self.parse;
        if !again {
            pairs.begin(at);
            parse.clear(len, len / 8);
        } else {
            // The literals behind the last match may become a match.
            parse.len -= pairs.trailing();
            let room = len + STEP;
            if parse.literals.len() < room {
                parse.literals.resize(room, 0);
            }
        }
        let until = &input[..at + len];
        pairs.find(until, |from, seq| {
            parse.copy(until, from, seq.literals as usize);
            parse.push(seq, most);
        });
        parse.copy(until, pairs.anchor(), until.len() - pairs.anchor());
        Some(())
    }

    /// Builds the frame from the parse of `src`. `more` says that there is input behind it.
    fn frame(&mut self, src: &[u8], room: usize, more: bool) -> Outcome {
        let most = self.block_max();
        let Self {
            parse, coder, out, ..
        } = self;
        coder.reset();
        parse.restore();
        // A block that is emitted and then does not fit is never larger than its content and some tables.
        if out.len() < room + 2 * BLOCK {
            out.resize(room + 2 * BLOCK, 0);
        }
        out[..5].copy_from_slice(&FRAME);
        out[5] = ((self.window_log - 10) << 3) as u8;

        let enough = room - room / 200;
        let mut pos = FRAME_HEADER;
        let mut last_header = None;
        let mut consumed = 0;
        let mut open = Open::new(Cut::START, Repeats::START);
        loop {
            let left = room.saturating_sub(pos + BLOCK_HEADER);
            let done = open.fill(parse, most, room >= SPLIT_ROOM, left);
            let plan = coder.plan(&open.stats);
            if open.over && !done && plan.size + room / 256 < left {
                // The estimate was too high.
                open.correct(plan.size, left);
                continue;
            }
            let content = open.stats.content;
            if content == 0 {
                break;
            }
            let body = pos + BLOCK_HEADER;
            // A coded block has to be smaller than its content.
            let mut raw = plan.size >= content;
            let mut stop = usize::MAX;
            if !raw && plan.size <= left {
                stop = coder.emit(&plan, open.seqs(parse), open.literals(parse), out, body);
                raw = stop - body >= content;
            }
            if raw && content <= left {
                stop = body + content;
                out[body..stop].copy_from_slice(&src[consumed..consumed + content]);
                open.end_repeats = open.start_repeats;
            }
            if stop > room {
                if let Some((kind, stop)) =
                    open.finish(parse, coder, plan, out, body, room, &src[consumed..])
                {
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
                if more && pos < enough {
                    return Outcome::Short(pos);
                }
                break;
            }
            open = open.next(parse);
        }
        match last_header {
            Some(header) => {
                out[header] |= 1;
                Outcome::Done(Fit {
                    consumed,
                    written: pos,
                })
            }
            None => Outcome::Done(Fit::NOTHING),
        }
    }
}

/// The block that is being filled.
struct Open {
    start: Cut,
    end: Cut,
    start_repeats: Repeats,
    end_repeats: Repeats,
    stats: Stats,
    /// Estimated size, and where it counts as too large. Unit: bits.
    price: u64,
    limit: u64,
    over: bool,
}

impl Open {
    fn new(start: Cut, repeats: Repeats) -> Self {
        Self {
            start,
            end: start,
            start_repeats: repeats,
            end_repeats: repeats,
            stats: Stats::new(),
            price: 0,
            limit: 0,
            over: false,
        }
    }

    fn seqs<'a>(&self, parse: &'a Parse) -> &'a [Seq] {
        &parse.seqs[self.start.seqs..self.end.seqs]
    }

    fn literals<'a>(&self, parse: &'a Parse) -> &'a [u8] {
        &parse.literals[self.start.literals..self.end.literals]
    }

    /// Takes segments until the block should end: it is more than `left` bytes, it has `most` bytes of content, the
    /// next segment is better off in a block of its own, or the parse ends, which is returned.
    fn fill(&mut self, parse: &mut Parse, most: usize, split: bool, left: usize) -> bool {
        self.limit = self.limit.max((left + left / 16) as u64 * 8);
        let goal = if split { SEGMENT } else { most };
        let mut segment = Stats::new();
        loop {
            segment.clear();
            let (mut end, mut repeats) = (self.end, self.end_repeats);
            parse.segment(
                &mut segment,
                &mut end,
                &mut repeats,
                goal,
                most - self.stats.content,
                most / 2,
            );
            if segment.content == 0 {
                return parse.ends_at(end);
            }
            if self.stats.content == 0 {
                std::mem::swap(&mut self.stats, &mut segment);
                if split {
                    self.price = self.stats.estimate();
                }
            } else {
                let mut both = self.stats.clone();
                both.merge(&segment);
                let price = both.estimate();
                if split && price > self.price + segment.estimate() {
                    return false;
                }
                self.stats = both;
                self.price = price;
            }
            (self.end, self.end_repeats) = (end, repeats);
            self.over = self.price > self.limit;
            if self.over || end.tail > 0 {
                return parse.ends_at(end);
            }
        }
    }

    /// The plan says that what counted as too large is not.
    fn correct(&mut self, planned: usize, left: usize) {
        self.limit = self.price * left as u64 / planned.max(1) as u64 * 33 / 32;
        self.over = false;
    }

    /// The block behind this one.
    fn next(self, parse: &mut Parse) -> Open {
        if let Some(seq) = parse.seqs.get_mut(self.end.seqs) {
            // It has given literals to the block that ends here.
            if self.end.tail > 0 {
                seq.literals -= self.end.tail as u32;
                parse.moved.push((self.end.seqs, self.end.tail as u32));
            }
        }
        Open::new(
            Cut {
                tail: 0,
                ..self.end
            },
            self.end_repeats,
        )
    }

    /// Moves the block's end to where the output is full, and writes it. Returns its kind and the position behind it.
    #[allow(clippy::too_many_arguments)]
    fn finish(
        &mut self,
        parse: &Parse,
        coder: &mut Coder,
        mut plan: Plan,
        out: &mut [u8],
        body: usize,
        room: usize,
        src: &[u8],
    ) -> Option<(u32, usize)> {
        let left = room.checked_sub(body)?;
        let (seqs, literals) = (
            &parse.seqs[..self.end.seqs],
            &parse.literals[..self.end.literals],
        );
        let most = self.stats.content;
        // Bytes that the plan should stay below what is left: its error.
        let mut margin = 3;
        for _ in 0..ATTEMPTS {
            for _ in 0..ROUNDS {
                let goal = left.saturating_sub(margin);
                let prices = coder.prices(&plan);
                if plan.size > goal {
                    let excess = (plan.size - goal) as u64 * 8 * BIT;
                    shrink(
                        &mut self.stats,
                        &mut self.end,
                        self.start,
                        seqs,
                        literals,
                        &prices,
                        excess,
                    );
                } else if plan.size + 2 + room / 1000 < goal && self.stats.content < most {
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
                let stop = coder.emit(&plan, self.seqs(parse), self.literals(parse), out, body);
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

/// So often the end of the output is moved by the prices of a plan before it is taken as it is.
const ROUNDS: usize = 4;

/// So often an output that turned out too large is made again, smaller.
const ATTEMPTS: usize = 20;

/// Unit: bytes.
const BLOCK_RAW_MAX: usize = BLOCK;

/// Writes the header of a block: not the last one, so far.
fn put_header(out: &mut [u8], pos: usize, kind: u32, size: usize) {
    let value = kind << 1 | (size as u32) << 3;
    out[pos..pos + BLOCK_HEADER].copy_from_slice(&value.to_le_bytes()[..BLOCK_HEADER]);
}

impl Parse {
    /// Takes over what the library found in `src`. `most` is the most that a block decodes to.
    fn fill(&mut self, src: &[u8], found: &[ZSTD_Sequence], most: usize) {
        self.clear(src.len(), found.len());
        let (mut at, mut waiting) = (0, 0);
        for seq in found {
            self.copy(src, at, seq.litLength as usize);
            waiting += seq.litLength;
            at += (seq.litLength + seq.matchLength) as usize;
            // Without a match: the end of one of the library's blocks.
            if seq.matchLength > 0 {
                self.push(Seq::new(waiting, seq.matchLength, seq.offset), most);
                waiting = 0;
            }
        }
        self.copy(src, at, src.len() - at);
    }

    /// Starts a parse of up to `len` bytes.
    fn clear(&mut self, len: usize, seqs: usize) {
        self.moved.clear();
        self.seqs.clear();
        self.seqs.reserve(seqs);
        self.len = 0;
        if self.literals.len() < len + STEP {
            self.literals.resize(len + STEP, 0);
        }
    }

    /// Takes over literals.
    #[inline(always)]
    fn copy(&mut self, src: &[u8], at: usize, n: usize) {
        let len = self.len;
        if n <= STEP && at + STEP <= src.len() {
            self.literals[len..len + STEP].copy_from_slice(&src[at..at + STEP]);
        } else {
            self.literals[len..len + n].copy_from_slice(&src[at..at + n]);
        }
        self.len += n;
    }

    /// Takes over a sequence, whose literals it has.
    #[inline(always)]
    fn push(&mut self, mut seq: Seq, most: usize) {
        // Half a block at most, so that match and literals find room in one.
        let half = (most / 2) as u32;
        while seq.matched > half {
            let part = half.min(seq.matched - 3);
            self.seqs.push(Seq::new(seq.literals, part, seq.offset));
            seq = Seq::new(0, seq.matched - part, seq.offset);
        }
        self.seqs.push(seq);
    }

    /// Gives back what was moved.
    fn restore(&mut self) {
        for (seq, literals) in self.moved.drain(..) {
            self.seqs[seq].literals += literals;
        }
    }

    /// Whether that is the end of the parse.
    fn ends_at(&self, cut: Cut) -> bool {
        cut.seqs == self.seqs.len() && cut.literals == self.len
    }

    /// Counts sequences from `end` on, up to `goal` bytes of content and never more than `most`, and moves `end`. Ends
    /// within literals if there are more than `run` in a row.
    fn segment(
        &mut self,
        stats: &mut Stats,
        end: &mut Cut,
        repeats: &mut Repeats,
        goal: usize,
        most: usize,
        run: usize,
    ) {
        let first = *end;
        // Literals are counted at the end, all at once.
        let mut content = stats.content;
        let mut tail = 0;
        while content < goal {
            let Some(seq) = self.seqs.get_mut(end.seqs) else {
                // Behind the last match.
                tail = (self.len - end.literals).min(most - content);
                break;
            };
            let literals = seq.literals as usize;
            if literals > run {
                // So many literals are blocks of their own; one stays with the match.
                tail = (literals - 1).min(most - content);
                break;
            }
            let len = literals + seq.matched as usize;
            if content + len > most {
                break;
            }
            repeats.code(seq);
            stats.add_match(*seq);
            content += len;
            end.literals += literals;
            end.seqs += 1;
        }
        end.tail = tail;
        end.literals += tail;
        stats.add_literals(&self.literals[first.literals..end.literals]);
    }
}

impl EncodeFit for Zstd {
    fn reset(&mut self) {
        self.ratio = FIRST_RATIO;
        self.search.reset();
        if let Some(pairs) = &mut self.pairs {
            pairs.reset();
        }
    }

    fn fit(&mut self, input: &[u8], at: usize, dst: &mut [u8]) -> Fit {
        let src = piece(input, at, self.window);
        let room = dst.len();
        if room < SHORT || src.len() < SHORT {
            let plain = &mut self.plain;
            return self
                .search
                .run(src, dst, |len, out| plain.compress(&src[..len], out));
        }
        let mut again = false;
        // A little more than should fit.
        let mut len = (room as f64 * self.ratio * MARGIN) as usize + 256;
        loop {
            if len + len / 8 >= src.len() {
                len = src.len();
            }
            let part = &src[..len];
            let more = len < src.len();
            if self.parse(input, at, len, again).is_none() {
                // The library refuses to parse a last block of a few bytes.
                let plain = &mut self.plain;
                return self
                    .search
                    .run(src, dst, |len, out| plain.compress(&src[..len], out));
            }
            match self.frame(part, room, more) {
                Outcome::Done(fit) => {
                    dst[..fit.written].copy_from_slice(&self.out[..fit.written]);
                    if fit.written * 8 >= room * 7 {
                        self.ratio = fit.consumed as f64 / fit.written as f64;
                    }
                    return fit;
                }
                Outcome::Short(pos) => {
                    again = true;
                    len = (len as f64 * room as f64 / pos as f64 * MARGIN) as usize + 256;
                }
            }
        }
    }

    fn window(&self) -> usize {
        self.window
    }
}
