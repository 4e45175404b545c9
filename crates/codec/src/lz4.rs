//! LZ4 with the C library: the greedy encoder, the high-compression encoder, and both decoders.
//!
//! The library keeps the format's end rules (the last five bytes are literals, the last match starts twelve bytes
//! before the end) and a block never begins with a zero byte: that would be a match before any output.

use std::ffi::{c_char, c_int, c_void};

use crate::{EncodeFit, EncoderSpec, Fit};

mod wide;

pub(crate) use wide::Wide;

// Links the C library that the declarations below belong to.
use lz4_sys as _;

unsafe extern "C" {
    fn LZ4_sizeofState() -> c_int;
    fn LZ4_sizeofStateHC() -> c_int;
    fn LZ4_compress_destSize_extState(
        state: *mut c_void,
        src: *const c_char,
        dst: *mut c_char,
        src_size: *mut c_int,
        target_dst_size: c_int,
        acceleration: c_int,
    ) -> c_int;
    fn LZ4_compress_HC_destSize(
        state: *mut c_void,
        src: *const c_char,
        dst: *mut c_char,
        src_size: *mut c_int,
        target_dst_size: c_int,
        level: c_int,
    ) -> c_int;
    fn LZ4_decompress_safe(
        src: *const c_char,
        dst: *mut c_char,
        src_size: c_int,
        dst_capacity: c_int,
    ) -> c_int;
    fn LZ4_decompress_safe_partial(
        src: *const c_char,
        dst: *mut c_char,
        src_size: c_int,
        target_output_size: c_int,
        dst_capacity: c_int,
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

/// Fills outputs, greedily.
pub(crate) struct Filler(State);

impl Filler {
    pub(crate) fn new() -> Self {
        // SAFETY: no preconditions.
        let bytes = unsafe { LZ4_sizeofState() };
        Self(State::new(bytes))
    }

    /// Compresses as much of `src` as fits into `dst`. `src` is at most [`WINDOW_MAX`](crate::WINDOW_MAX) long.
    pub(crate) fn fill(&mut self, src: &[u8], dst: &mut [u8]) -> Fit {
        if src.is_empty() || dst.is_empty() {
            return Fit::NOTHING;
        }
        let mut consumed = src.len() as c_int; // fits: at most WINDOW_MAX
        let room = dst.len().min(c_int::MAX as usize) as c_int;
        // SAFETY: the state has LZ4_sizeofState() bytes, 8-aligned, by `new`; the function initialises it. `src` and
        // `dst` are slices of the lengths passed.
        let written = unsafe {
            LZ4_compress_destSize_extState(
                self.0.as_mut_ptr(),
                src.as_ptr().cast(),
                dst.as_mut_ptr().cast(),
                &mut consumed,
                room,
                1,
            )
        };
        done(consumed, written)
    }
}

/// The greedy encoder.
pub(crate) struct Fast {
    filler: Filler,
    window: usize,
}

impl Fast {
    pub(crate) fn new(spec: &EncoderSpec) -> Self {
        Self {
            filler: Filler::new(),
            window: spec.window,
        }
    }
}

impl EncodeFit for Fast {
    fn reset(&mut self) {}

    fn fit(&mut self, input: &[u8], at: usize, dst: &mut [u8]) -> Fit {
        self.filler.fill(piece(input, at, self.window), dst)
    }

    fn window(&self) -> usize {
        self.window
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

/// Decodes a whole block. Returns the bytes written, `None` if the block is broken or longer than `dst`.
pub(crate) fn decode(src: &[u8], dst: &mut [u8]) -> Option<usize> {
    let (src_len, dst_len) = (
        c_int::try_from(src.len()).ok()?,
        c_int::try_from(dst.len()).ok()?,
    );
    // SAFETY: both are slices of the lengths passed; the function reads and writes within them whatever `src` holds.
    let n = unsafe {
        LZ4_decompress_safe(
            src.as_ptr().cast(),
            dst.as_mut_ptr().cast(),
            src_len,
            dst_len,
        )
    };
    usize::try_from(n).ok()
}

/// Decodes until `dst` is full. Returns the bytes written, `None` if the block is broken before that.
pub(crate) fn decode_prefix(src: &[u8], dst: &mut [u8]) -> Option<usize> {
    let (src_len, dst_len) = (
        c_int::try_from(src.len()).ok()?,
        c_int::try_from(dst.len()).ok()?,
    );
    // SAFETY: both are slices of the lengths passed; the function reads and writes within them whatever `src` holds.
    let n = unsafe {
        LZ4_decompress_safe_partial(
            src.as_ptr().cast(),
            dst.as_mut_ptr().cast(),
            src_len,
            dst_len,
            dst_len,
        )
    };
    usize::try_from(n).ok()
}

/// Room that a block of `src_len` bytes needs behind its output to be decoded in place. Unit: bytes. Source: the
/// library's LZ4_DECOMPRESS_INPLACE_MARGIN.
pub(crate) fn in_place_margin(src_len: usize) -> usize {
    (src_len >> 8) + 32
}

/// Decodes the block at the end of `buf`, `src_len` bytes long, to the start of `buf`. Returns the bytes written; `None`
/// if the block is broken, longer than `len`, or has too little room.
pub(crate) fn decode_in_place(buf: &mut [u8], src_len: usize, len: usize) -> Option<usize> {
    let at = buf.len().checked_sub(src_len)?;
    if len.checked_add(in_place_margin(src_len))? > buf.len() {
        return None;
    }
    let (src_len, dst_len) = (c_int::try_from(src_len).ok()?, c_int::try_from(len).ok()?);
    let start = buf.as_mut_ptr();
    // SAFETY: `at + src_len` is the buffer's length and `len` is less, by the two checks above, so both ranges lie in
    // `buf`, which is ours alone. The function reads within the one and writes within the other whatever the bytes are.
    // That they overlap is allowed: the library promises right results for a block at the end of a buffer with this
    // margin, and it takes no pointer for unaliased.
    let n = unsafe {
        LZ4_decompress_safe(
            start.add(at).cast_const().cast(),
            start.cast(),
            src_len,
            dst_len,
        )
    };
    usize::try_from(n).ok()
}
