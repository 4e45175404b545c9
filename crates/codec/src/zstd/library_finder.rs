//! Match finders of the C library: for the high levels, and for the middle ones with small outputs.

use std::ffi::c_int;

use zstd_sys::{
    ZSTD_Sequence, ZSTD_cParameter, ZSTD_compressionParameters, ZSTD_generateSequences,
    ZSTD_getCParams, ZSTD_strategy,
};

use super::compressor::Compressor;
use super::continuation::Continuation;
use super::library::ok;
use super::sequences::{MatchFinder, SequenceStore};
use crate::EncoderSpec;

/// Longest input for which the library's settings are tuned. Unit: bytes.
pub(super) const TUNED_MAX: usize = 256 << 10;

/// Shortest input that the library parses. Unit: bytes.
const LEAST: usize = 64;

/// Smallest hash table that is limited by the output size. Unit: log2 of entries.
const HASH_LOG_MIN: u32 = 15;

/// Library's match finder, and our continuation.
pub(super) struct LibraryFinder {
    context: Compressor,
    found: Vec<ZSTD_Sequence>,
    /// Length of redundant input above which our finder finds all matches. Unit: bytes.
    calm: usize,
    pub(super) tail: Continuation,
}

/// Returns true if the library has a weaker strategy without optimal parsing for long input at this level.
fn eases(level: c_int) -> bool {
    // SAFETY: no preconditions.
    let tuned = unsafe { ZSTD_getCParams(level, TUNED_MAX as u64 + 1, 0) };
    tuned.strategy as u32 <= ZSTD_strategy::ZSTD_btlazy2 as u32
}

impl LibraryFinder {
    /// Creates a finder with the settings `tuned`, which then do not depend on the length of the input.
    pub(super) fn new(
        spec: &EncoderSpec,
        window_log: u32,
        tuned: &ZSTD_compressionParameters,
    ) -> Option<Self> {
        let context = Compressor::new(spec.level, window_log)?;
        let slow = tuned.strategy as u32 > ZSTD_strategy::ZSTD_lazy2 as u32;
        // A table with one entry per position finds the same matches and stays in the cache.
        let hash_log = if slow {
            tuned
                .hashLog
                .min((1 + spec.cluster.ilog2()).max(HASH_LOG_MIN))
        } else {
            tuned.hashLog
        };
        for (parameter, value) in [
            (ZSTD_cParameter::ZSTD_c_chainLog, tuned.chainLog),
            (ZSTD_cParameter::ZSTD_c_hashLog, hash_log),
            (ZSTD_cParameter::ZSTD_c_searchLog, tuned.searchLog),
            (ZSTD_cParameter::ZSTD_c_minMatch, tuned.minMatch),
            (ZSTD_cParameter::ZSTD_c_targetLength, tuned.targetLength),
            (ZSTD_cParameter::ZSTD_c_strategy, tuned.strategy as u32),
        ] {
            context.set(parameter, c_int::try_from(value).ok()?)?;
        }
        // The library's block splitter would need the block's bytes, which are never written.
        context.set(ZSTD_cParameter::ZSTD_c_experimentalParam13, 2)?;
        Some(Self {
            context,
            found: Vec::new(),
            calm: if eases(spec.level) {
                TUNED_MAX
            } else {
                usize::MAX
            },
            tail: Continuation::new(spec, 1 << window_log, slow)?,
        })
    }

    /// Finds the sequences of the part of `data[at..]` that is estimated to fit into `room` bytes, by the `ratio` of
    /// the last output.
    ///
    /// The continuation follows after it. `most` is the largest content of a block. `None` if the library refuses, as
    /// it does for a last block of a few bytes.
    pub(super) fn find_sequences(
        &mut self,
        (data, at): (&[u8], usize),
        (room, ratio): (usize, f64),
        most: usize,
        store: &mut SequenceStore,
    ) -> Option<()> {
        let rest = &data[at..];
        let len = self
            .tail
            .guess(rest, room, ratio)
            .max(LEAST)
            .min(rest.len());
        if len > self.calm && self.tail.is_redundant() {
            store.clear(most);
            self.tail.begin(at);
            return Some(());
        }
        let src = &rest[..len];
        let bound = len / 3 + len / 1024 + 2;
        self.found.clear();
        self.found.reserve(bound);
        // SAFETY: the context is alive and borrowed exclusively; `src` is a slice of the length passed; `found` has
        // space for `bound` sequences, which the library checks.
        let n = ok(unsafe {
            ZSTD_generateSequences(
                self.context.as_ptr(),
                self.found.as_mut_ptr(),
                self.found.capacity(),
                src.as_ptr().cast(),
                src.len(),
            )
        })?;
        // SAFETY: the library has written the first `n` sequences, which are plain data.
        unsafe { self.found.set_len(n) };
        let anchor = store.fill(src, &self.found, most, len < rest.len());
        self.tail.wait(at, at + anchor, at + len);
        Some(())
    }
}
