//! LZ4: a greedy encoder; the C library's high-compression one; a decoder.
//!
//! The library keeps the format's end rules (the last five bytes are literals, the last match starts twelve bytes
//! before the end) and a block never begins with a zero byte: that would be a match before any output.

use std::ffi::{c_char, c_int, c_void};

use crate::{EncodeFit, EncoderSpec, Fit, FitEnd, Trim};

mod block;
mod cut;
mod greedy;
mod walk;

pub(crate) use block::{decode, decode_in_place, decode_prefix, in_place_margin};
pub(crate) use cut::trimmed;
pub(crate) use greedy::Greedy;
pub(crate) use walk::all_decode;

// Links the C library that the declarations below belong to.
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

/// Memory for an encoder of the C library, aligned for any of its types.
struct State(Vec<u64>);

impl State {
    fn new(bytes: c_int) -> Self {
        // fits: the library's states are some 10 to 300 KiB.
        Self(vec![0; (bytes as usize).div_ceil(8)])
    }

    fn as_mut_ptr(&mut self) -> *mut c_void {
        self.0.as_mut_ptr().cast()
    }
}

/// The high-compression encoder.
pub(crate) struct High {
    state: State,
    window: usize,
    level: c_int,
}

impl High {
    pub(crate) fn new(spec: &EncoderSpec) -> Self {
        // SAFETY: no preconditions.
        let bytes = unsafe { LZ4_sizeofStateHC() };
        Self {
            state: State::new(bytes),
            window: spec.window,
            level: spec.level,
        }
    }
}

impl EncodeFit for High {
    fn reset(&mut self) {}

    fn fit(&mut self, input: &[u8], at: usize, dst: &mut [u8]) -> Fit {
        let src = piece(input, at, self.window);
        if src.is_empty() || dst.is_empty() {
            return Fit::NOTHING;
        }
        let mut consumed = src.len() as c_int; // fits: at most WINDOW_MAX
        let room = dst.len().min(c_int::MAX as usize) as c_int;
        // SAFETY: `state` has LZ4_sizeofStateHC() bytes, 8-aligned, by High::new; the function initialises it. `src`
        // and `dst` are slices of the lengths passed.
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
        done(consumed, written)
    }

    fn fit_end(&mut self, input: &[u8], at: usize, dst: &mut [u8], trim: &Trim) -> FitEnd {
        let fit = self.fit(input, at, dst);
        trimmed(&input[at..], fit, dst, trim)
    }

    fn window(&self) -> usize {
        self.window
    }
}

/// The input that one call may look at.
pub(crate) fn piece(input: &[u8], at: usize, window: usize) -> &[u8] {
    let rest = &input[at..];
    &rest[..rest.len().min(window)]
}

fn done(consumed: c_int, written: c_int) -> Fit {
    match (usize::try_from(consumed), usize::try_from(written)) {
        (Ok(consumed), Ok(written)) if consumed > 0 && written > 0 => Fit { consumed, written },
        _ => Fit::NOTHING,
    }
}
