//! Input as literals and matches: what a finder fills, and what blocks are counted from.

use zstd_sys::ZSTD_Sequence;

use super::block::{BlockStats, ParsePosition, RepeatOffsets, Sequence};

/// Short runs of literals are copied as so many bytes, which is one instruction, longer ones as so many.
const STEP: usize = 16;
const LONG_STEP: usize = 64;

/// Finds matches in an input, a piece at a time, and goes on where it stopped.
pub(super) trait MatchFinder: Send {
    /// Starts on new input.
    fn reset(&mut self);

    /// Starts a frame at `start`: matches lie behind it.
    fn begin(&mut self, start: usize);

    /// Finds sequences in `data`, the input so far, from where it stopped until it is at `until` or close to the end of
    /// the data, and gives them to `store`. The last match may reach further than `until`.
    fn find(&mut self, data: &[u8], until: usize, store: &mut SequenceStore);

    /// Where the last match ended, and where the search goes on.
    fn position(&self) -> (usize, usize);

    /// The first `n` bytes behind the last match are no longer part of what comes.
    fn give(&mut self, n: usize);
}

/// A parse.
#[derive(Default)]
pub(super) struct SequenceStore {
    pub(super) seqs: Vec<Sequence>,
    /// All literals, one after the other; those after the last match, too. Longer than that, for copies in steps.
    pub(super) literals: Vec<u8>,
    /// Literals of the sequences.
    len: usize,
    /// Literals after the last match.
    rest: usize,
    /// The longest match that is left in one piece: half a block, so that match and literals find room in one.
    longest: u32,
    /// The finder has more.
    open: bool,
}

impl SequenceStore {
    /// Takes over what the library found in `src`. `most` is the most that a block decodes to; `open` says that a finder goes
    /// on behind it. Returns where the last match ended.
    pub(super) fn fill(
        &mut self,
        src: &[u8],
        found: &[ZSTD_Sequence],
        most: usize,
        open: bool,
    ) -> usize {
        self.clear(most);
        self.seqs.reserve(found.len());
        let (mut at, mut waiting) = (0, 0);
        for seq in found {
            waiting += seq.litLength;
            at += seq.litLength as usize;
            // Without a match: the end of one of the library's blocks.
            if seq.matchLength > 0 {
                let from = at - waiting as usize;
                self.take(
                    src,
                    from,
                    Sequence::new(waiting, seq.matchLength, seq.offset),
                );
                waiting = 0;
            }
            at += seq.matchLength as usize;
        }
        let anchor = at - waiting as usize;
        self.trail(src, anchor, src.len());
        self.open = open;
        anchor
    }

    /// Starts a parse. `most` is the most that a block decodes to.
    pub(super) fn clear(&mut self, most: usize) {
        self.seqs.clear();
        (self.len, self.rest) = (0, 0);
        self.longest = (most / 2) as u32;
        self.open = true;
    }

    /// Copies `src[at..at + n]` behind the literals of the sequences.
    #[inline(always)]
    fn copy(&mut self, src: &[u8], at: usize, n: usize) {
        let len = self.len;
        if self.literals.len() < len + n + LONG_STEP {
            self.lengthen(len + n + LONG_STEP);
        }
        if n <= STEP && at + STEP <= src.len() {
            self.literals[len..len + STEP].copy_from_slice(&src[at..at + STEP]);
        } else if n <= LONG_STEP && at + LONG_STEP <= src.len() {
            self.literals[len..len + LONG_STEP].copy_from_slice(&src[at..at + LONG_STEP]);
        } else {
            self.literals[len..len + n].copy_from_slice(&src[at..at + n]);
        }
    }

    #[cold]
    fn lengthen(&mut self, len: usize) {
        self.literals.resize(len + len / 2 + 4096, 0);
    }

    /// Takes over a sequence whose literals start at `from` in `src`.
    #[inline(always)]
    pub(super) fn take(&mut self, src: &[u8], from: usize, mut seq: Sequence) {
        self.copy(src, from, seq.literals as usize);
        self.len += seq.literals as usize;
        while seq.matched > self.longest {
            let part = self.longest.min(seq.matched - 3);
            self.seqs
                .push(Sequence::new(seq.literals, part, seq.offset));
            seq = Sequence::new(0, seq.matched - part, seq.offset);
        }
        self.seqs.push(seq);
    }

    /// Takes over `src[from..to]`, the literals behind the last match.
    fn trail(&mut self, src: &[u8], from: usize, to: usize) {
        self.copy(src, from, to - from);
        self.rest = to - from;
    }

    /// Has the finder go on until there are sequences for everything before `until`, the data ends, or there are more
    /// than `run` literals in a row.
    pub(super) fn pull(
        &mut self,
        finder: &mut dyn MatchFinder,
        data: &[u8],
        until: usize,
        run: usize,
    ) {
        let (mut anchor, mut at) = finder.position();
        if anchor >= until || !self.open {
            return;
        }
        while anchor < until && at - anchor <= run && self.open {
            finder.find(data, until.max(at + STRIDE), self);
            let before = at;
            (anchor, at) = finder.position();
            self.open = at != before;
        }
        self.trail(data, anchor, if self.open { at } else { data.len() });
    }

    /// The block that ends at `end` has taken literals of the next sequence.
    pub(super) fn split(&mut self, end: ParsePosition, finder: &mut dyn MatchFinder) {
        if end.tail == 0 {
            return;
        }
        match self.seqs.get_mut(end.seqs) {
            Some(seq) => seq.literals -= end.tail as u32,
            None => {
                finder.give(end.tail);
                self.len += end.tail;
                self.rest -= end.tail;
            }
        }
    }

    /// Whether that is the end of the parse.
    pub(super) fn ends_at(&self, cut: ParsePosition) -> bool {
        !self.open && cut.seqs == self.seqs.len() && cut.literals == self.len + self.rest
    }

    /// Counts sequences from `end` on, up to `goal` bytes of content and never more than `most`, and moves `end`. Ends
    /// within literals if there are more than `run` in a row.
    pub(super) fn segment(
        &mut self,
        stats: &mut BlockStats,
        end: &mut ParsePosition,
        repeats: &mut RepeatOffsets,
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
                tail = (self.len + self.rest - end.literals).min(most - content);
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

/// A finder is asked for so much at least. Unit: bytes.
const STRIDE: usize = 256;
