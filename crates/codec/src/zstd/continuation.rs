//! Continuation of the search past the end of the library's matches.
//!
//! The library finds the matches of the high levels in one pass, and has to be told how much input to search before
//! it is known how much fits. Too much wastes part of the time, too little all of it. It therefore gets an estimate.
//! If more fits, a row hash finds the remaining few percent. It indexes the input that the library has searched, so
//! that matches reach back into it.

use super::row_hash::RowHash;
use super::sequences::{MatchFinder, SequenceStore};
use crate::EncoderSpec;
use crate::input_estimate::InputEstimator;

/// Number of positions visited (log2), and number of positions of lazy matching.
const SEARCH: u32 = 5;
const DEPTH: u32 = 2;

/// Share of the estimate that the library searches: its matches are better.
const SHARE: f64 = 1.02;

/// Compression ratio of LZ4 from which on input counts as redundant.
const REDUNDANT: usize = 5;

/// Initial factor of the estimator. Unit: bytes of LZ4 per byte of output.
const WORTH: f64 = 1.5;

/// Match finder that starts where the library stopped, on the first request.
pub(super) struct Continuation {
    rows: RowHash,
    /// Start of the frame, end of the last match, and the position where the library stopped.
    waiting: Option<(usize, usize, usize)>,
    /// Estimator, if it takes a small part of the time.
    probe: Option<InputEstimator>,
}

impl Continuation {
    /// Creates a finder for match distances of up to `reach`. `slow`: the library is so slow that an estimate with
    /// LZ4 pays.
    /// `None` if memory is short.
    pub(super) fn new(spec: &EncoderSpec, reach: usize, slow: bool) -> Option<Self> {
        Some(Self {
            rows: RowHash::for_cluster(spec.cluster, reach, SEARCH, DEPTH, true)?,
            waiting: None,
            probe: slow.then(|| InputEstimator::new(WORTH)),
        })
    }

    /// Returns how much of `src` the library should search for an output of `room` bytes; `ratio` is that of the last
    /// output.
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

    /// Returns true if the input of the last estimate is so redundant that the library's matches do not pay. Few
    /// source trees, and few files of an image, are like that.
    pub(super) fn is_redundant(&self) -> bool {
        let probe = self.probe.as_ref();
        probe.is_some_and(|probe| probe.lz4_ratio() >= REDUNDANT)
    }

    /// Adjusts the estimator: an estimated output holds `consumed` bytes.
    pub(super) fn learn(&mut self, consumed: usize) {
        if let Some(probe) = &mut self.probe {
            probe.learn(consumed);
        }
    }

    /// Notes that the library has searched `start..at`, where the last match ended at `anchor`.
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
