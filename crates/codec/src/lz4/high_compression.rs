//! High-compression LZ4 encoder of the C library.
//!
//! The library satisfies the format's end rules: the last five bytes are literals, and the last match starts at least
//! twelve bytes before the end. A block never begins with a zero byte, which would be a match before any output.

use std::ffi::{c_char, c_int, c_void};

use super::truncate::trim_tail;
use crate::encode::bounded_input;
use crate::{Encoder, EncoderSpec, Fit, TailFit, Trim};

// Links the C library that defines the functions below.
use lz4_sys as _;

unsafe extern "C" {
    fn LZ4_sizeofStateHC() -> c_int;
    fn LZ4_compress_HC_destSize(
        state: *mut c_void,
        src: *const c_char,
        dst: *mut c_char,
        src_size: *mut c_int,
        target_dst_size: c_int,
        level: c_int,
    ) -> c_int;
}

/// State of an encoder of the C library, aligned for any of its types.
struct LibraryState(Vec<u64>);

impl LibraryState {
    fn new(bytes: c_int) -> Self {
        // fits: the library's states have 10 to 300 KiB
        Self(vec![0; (bytes as usize).div_ceil(8)])
    }

    fn as_mut_ptr(&mut self) -> *mut c_void {
        self.0.as_mut_ptr().cast()
    }
}

/// Encoder with the state of the C library.
pub(crate) struct HighCompressionEncoder {
    state: LibraryState,
    input_max: usize,
    level: c_int,
}

impl HighCompressionEncoder {
    pub(crate) fn new(spec: &EncoderSpec) -> Self {
        // SAFETY: no preconditions.
        let bytes = unsafe { LZ4_sizeofStateHC() };
        Self {
            state: LibraryState::new(bytes),
            input_max: spec.input_max,
            level: spec.level,
        }
    }
}

impl Encoder for HighCompressionEncoder {
    fn reset(&mut self) {}

    fn fit(&mut self, input: &[u8], at: usize, dst: &mut [u8]) -> Fit {
        let src = bounded_input(input, at, self.input_max);
        if src.is_empty() || dst.is_empty() {
            return Fit::NOTHING;
        }
        let mut consumed = src.len() as c_int; // fits: at most INPUT_MAX
        let room = dst.len().min(c_int::MAX as usize) as c_int;
        // SAFETY: `state` has LZ4_sizeofStateHC() bytes, 8-aligned, and the function initialises it. `src` and `dst`
        // are slices of the lengths passed.
        let written = unsafe {
            LZ4_compress_HC_destSize(
                self.state.as_mut_ptr(),
                src.as_ptr().cast(),
                dst.as_mut_ptr().cast(),
                &mut consumed,
                room,
                self.level,
            )
        };
        fit_result(consumed, written)
    }

    fn fit_tail(&mut self, input: &[u8], at: usize, dst: &mut [u8], trim: &Trim) -> TailFit {
        let fit = self.fit(input, at, dst);
        trim_tail(&input[at..], fit, dst, trim)
    }

    fn input_max(&self) -> usize {
        self.input_max
    }
}

fn fit_result(consumed: c_int, written: c_int) -> Fit {
    match (usize::try_from(consumed), usize::try_from(written)) {
        (Ok(consumed), Ok(written)) if consumed > 0 && written > 0 => Fit { consumed, written },
        _ => Fit::NOTHING,
    }
}
