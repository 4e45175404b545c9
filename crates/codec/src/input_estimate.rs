//! How much input an output will take: asked of LZ4, which is many times faster than what it is asked for.
//!
//! LZ4 fills a fixed output in one go, and where it finds much, the others do, too. What is learnt is only how many
//! bytes of LZ4 one byte of the real output is worth, and that changes little from one output to the next, less than
//! the ratio does.

use crate::lz4::GreedyEncoder;
use crate::{Encoder, INPUT_MAX};

/// Bounds of what is learnt. Unit: bytes of LZ4 per byte of output.
const WORTH_MIN: f64 = 0.95;
const WORTH_MAX: f64 = 6.0;

/// The predictor.
pub(crate) struct InputEstimator {
    lz4: GreedyEncoder<8192>,
    out: Vec<u8>,
    worth: f64,
    first: f64,
    guessed: usize,
    /// What LZ4 wrote of that. Unit: bytes.
    written: usize,
}

impl InputEstimator {
    /// `first` is what one byte of output is worth before anything is known. Unit: bytes of LZ4.
    pub(crate) fn new(first: f64) -> Self {
        Self {
            lz4: GreedyEncoder::with_input_max(INPUT_MAX),
            out: Vec::new(),
            worth: first,
            first,
            guessed: 0,
            written: 0,
        }
    }

    /// Forgets what was learnt.
    pub(crate) fn reset(&mut self) {
        self.worth = self.first;
    }

    /// About how much of `src` an output of `room` bytes will hold.
    pub(crate) fn guess(&mut self, src: &[u8], room: usize) -> usize {
        // fits: a few times the largest output
        let room = (room as f64 * self.worth) as usize;
        if self.out.len() < room {
            self.out.resize(room, 0);
        }
        let fit = self.lz4.fit(src, 0, &mut self.out[..room]);
        (self.guessed, self.written) = (fit.consumed, fit.written);
        self.guessed
    }

    /// How often what was guessed last holds what LZ4 makes of it.
    pub(crate) fn lz4_ratio(&self) -> usize {
        self.guessed / self.written.max(1)
    }

    /// What an output that was guessed for, and was filled, really held.
    pub(crate) fn learn(&mut self, consumed: usize) {
        if self.guessed > 0 {
            let worth = self.worth * consumed as f64 / self.guessed as f64;
            self.worth = worth.clamp(WORTH_MIN, WORTH_MAX);
        }
    }
}
