//! What goes on where the library's matches end.
//!
//! The library finds the matches of the high levels, and only in one go: it has to be told how much input to look at before
//! anybody knows how much will fit. Much is wasted if that is too much, all of it if that is too little. So it gets about
//! what should fit, and where there is room for more, rows find the rest, which is a few percent: they index what the
//! library has seen, so that the matches reach back into it.

use super::row_hash::RowHash;
use super::sequences::{MatchFinder, SequenceStore};
use crate::EncoderSpec;
use crate::input_estimate::InputEstimator;

/// How many places are looked at, and how far ahead. Unit: bits; positions.
const SEARCH: u32 = 5;
const DEPTH: u32 = 2;

/// How much of what is guessed the library gets: matches that it finds are better.
const SHARE: f64 = 1.02;

/// Input that LZ4 shrinks to a part of so many repeats itself.
const REDUNDANT: usize = 5;

/// What a byte of output is worth before anything is known. Unit: bytes of LZ4.
const WORTH: f64 = 1.5;

/// The finder, which has nothing to do until somebody asks for more.
pub(super) struct Continuation {
    rows: RowHash,
    /// Start of the frame, end of the last match, and where the library has stopped.
    waiting: Option<(usize, usize, usize)>,
    /// Guesses how much will fit, where that takes little of the time.
    probe: Option<InputEstimator>,
}

impl Continuation {
    /// For matches over up to `reach` bytes. `slow`: the library takes so long that a guess by LZ4 pays.
    pub(super) fn new(spec: &EncoderSpec, reach: usize, slow: bool) -> Self {
        Self {
            rows: RowHash::for_cluster(spec.cluster, reach, SEARCH, DEPTH, true),
            waiting: None,
            probe: slow.then(|| InputEstimator::new(WORTH)),
        }
    }

    /// How much of `src` the library should look at for an output of `room` bytes; `ratio` is what the last one was.
    pub(super) fn guess(&mut self, src: &[u8], room: usize, ratio: f64) -> usize {
        let fits = match &mut self.probe {
            Some(probe) => probe.guess(src, room) as f64,
            None => room as f64 * ratio,
        };
        let len = (fits * SHARE) as usize;
        if len + len / 16 >= src.len() {
            src.len()
        } else {
            len
        }
    }

    /// True if what was guessed for last repeats itself so much that the library's matches are not worth their time. Most of
    /// what is built is not like that, and little of an image.
    pub(super) fn is_redundant(&self) -> bool {
        let probe = self.probe.as_ref();
        probe.is_some_and(|probe| probe.lz4_ratio() >= REDUNDANT)
    }

    /// An output that was guessed for was filled with so much.
    pub(super) fn learn(&mut self, consumed: usize) {
        if let Some(probe) = &mut self.probe {
            probe.learn(consumed);
        }
    }

    /// The library has looked at `start..at`, where the last match ended at `anchor`.
    pub(super) fn wait(&mut self, start: usize, anchor: usize, at: usize) {
        self.waiting = Some((start, anchor, at));
    }
}

impl MatchFinder for Continuation {
    fn reset(&mut self) {
        self.rows.reset();
        if let Some(probe) = &mut self.probe {
            probe.reset();
        }
    }

    fn begin(&mut self, start: usize) {
        self.wait(start, start, start);
    }

    fn find(&mut self, data: &[u8], until: usize, store: &mut SequenceStore) {
        if let Some((start, anchor, at)) = self.waiting.take() {
            self.rows.resume(data, start, anchor, at);
        }
        self.rows.find(data, until, store);
    }

    fn position(&self) -> (usize, usize) {
        match self.waiting {
            Some((_, anchor, at)) => (anchor, at),
            None => self.rows.position(),
        }
    }

    fn give(&mut self, n: usize) {
        match &mut self.waiting {
            Some((_, anchor, _)) => *anchor += n,
            None => self.rows.give(n),
        }
    }
}
