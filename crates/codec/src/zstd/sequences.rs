//! Literals and matches of an input, which match finders produce and blocks are counted from.

use zstd_sys::ZSTD_Sequence;

use super::block::{BlockStats, ParsePosition, RepeatOffsets, Sequence};

/// Lengths of short and of longer literal runs that are copied as a whole, in few instructions. Unit: bytes.
const STEP: usize = 16;
const LONG_STEP: usize = 64;

/// Finds matches in an input, chunk by chunk.
pub(super) trait MatchFinder: Send {
    /// Starts a new input.
    fn reset(&mut self);

    /// Starts a frame at `start`, before which no match reaches.
    fn begin(&mut self, start: usize);

    /// Finds sequences in `data`, the input so far, and adds them to `store`.
    ///
    /// It continues where it stopped, until `until` or close to the end of the data. The last match may reach past
    /// `until`.
    fn find(&mut self, data: &[u8], until: usize, store: &mut SequenceStore);

    /// Returns the end of the last match, and the position where the search continues.
    fn position(&self) -> (usize, usize);

    /// Removes the first `n` literals after the last match, which a block has taken.
    fn give(&mut self, n: usize);
}

/// Sequences and literals of a frame.
#[derive(Default)]
pub(super) struct SequenceStore {
    pub(super) seqs: Vec<Sequence>,
    /// All literals in order, including those after the last match. Longer than its content, for copies in steps.
    pub(super) literals: Vec<u8>,
    /// Number of literals of the sequences.
    len: usize,
    /// Number of literals after the last match.
    rest: usize,
    /// Longest match that is not split: half a block, so that match and literals fit into one.
    longest: u32,
    /// True if the finder can continue.
    open: bool,
}

impl SequenceStore {
    /// Stores the library's sequences for `src`. Returns the end of the last match.
    ///
    /// `most` is the largest content of a block; `open` is true if a finder continues after them.
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
            // Without a match, it is the end of one of the library's blocks.
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

    /// Starts a frame. `most` is the largest content of a block.
    pub(super) fn clear(&mut self, most: usize) {
        self.seqs.clear();
        (self.len, self.rest) = (0, 0);
        self.longest = (most / 2) as u32;
        self.open = true;
    }

    /// Copies `src[at..at + n]` to the end of the literals of the sequences.
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

    /// Stores a sequence whose literals start at `from` in `src`.
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

    /// Stores `src[from..to]`, the literals after the last match.
    fn trail(&mut self, src: &[u8], from: usize, to: usize) {
        self.copy(src, from, to - from);
        self.rest = to - from;
    }

    /// Runs the finder until there are sequences for everything before `until`, the data ends, or more than `run`
    /// literals are in a row.
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

    /// Splits the next sequence: the block that ends at `end` has taken some of its literals.
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

    /// Returns true if the position is the end of all sequences.
    pub(super) fn ends_at(&self, cut: ParsePosition) -> bool {
        !self.open && cut.seqs == self.seqs.len() && cut.literals == self.len + self.rest
    }

    /// Counts sequences from `end` on, up to `goal` bytes of content and never more than `most`, and moves `end`.
    /// Stops within a run of more than `run` literals.
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
                // Literals after the last match.
                tail = (self.len + self.rest - end.literals).min(most - content);
                break;
            };
            let literals = seq.literals as usize;
            if literals > run {
                // A long run of literals forms blocks of its own; one literal stays with the match.
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

/// Shortest distance that a finder advances at a time. Unit: bytes.
const STRIDE: usize = 256;

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Checks that all matches of `finder` are of equal bytes, within the frame and within `reach`, in frames of
    /// these lengths.
    pub(in crate::zstd) fn check_matches(
        finder: &mut dyn MatchFinder,
        reach: usize,
        lengths: &[usize],
    ) {
        let mut all = Vec::new();
        for n in 0..16_000u32 {
            all.extend_from_slice(format!("{} of {};", n * n % 971, n % 13).as_bytes());
        }
        for start in [0, 777] {
            for &len in lengths {
                let data = &all[..start + len];
                finder.reset();
                finder.begin(start);
                let mut store = SequenceStore::default();
                store.clear(1 << 17);
                for until in [len / 3, len / 2, len] {
                    finder.find(data, start + until, &mut store);
                }
                let mut at = start;
                for seq in &store.seqs {
                    at += seq.literals as usize;
                    let (from, matched) = (at - seq.offset as usize, seq.matched as usize);
                    assert!(from >= start && at - from <= reach);
                    assert!(data[from..from + matched] == data[at..at + matched]);
                    at += matched;
                }
                assert!(len < 300 || !store.seqs.is_empty());
                assert!(at <= data.len() && finder.position().0 == at);
            }
        }
    }
}
