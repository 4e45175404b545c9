//! Estimate of the input that fits into an output, by compressing it with LZ4, which is many times faster than the
//! other methods.
//!
//! LZ4 fills a fixed output in one pass, and input that it compresses well is compressed well by the others, too. The
//! estimator learns the number of LZ4 bytes per byte of the real output, which varies less from one output to the
//! next than the ratio does.

use crate::lz4::GreedyEncoder;
use crate::{Encoder, INPUT_MAX};

/// Bounds of the learned factor. Unit: bytes of LZ4 per byte of output.
const WORTH_MIN: f64 = 0.95;
const WORTH_MAX: f64 = 6.0;

/// Estimator with the factor learned from previous outputs.
pub(crate) struct InputEstimator {
    lz4: GreedyEncoder<8192>,
    out: Vec<u8>,
    worth: f64,
    first: f64,
    guessed: usize,
    /// Length of the LZ4 block for the last estimate. Unit: bytes.
    written: usize,
}

impl InputEstimator {
    /// `first` is the factor before any output is known. Unit: bytes of LZ4 per byte of output.
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

    /// Returns to the initial factor.
    pub(crate) fn reset(&mut self) {
        self.worth = self.first;
    }

    /// Estimates the number of bytes of `src` that fit into `room` bytes of output.
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

    /// Returns the compression ratio of LZ4 for the last estimate.
    pub(crate) fn lz4_ratio(&self) -> usize {
        self.guessed / self.written.max(1)
    }

    /// Adjusts the factor: an output that was estimated and filled holds `consumed` bytes of input.
    pub(crate) fn learn(&mut self, consumed: usize) {
        if self.guessed > 0 {
            let worth = self.worth * consumed as f64 / self.guessed as f64;
            self.worth = worth.clamp(WORTH_MIN, WORTH_MAX);
        }
    }
}
