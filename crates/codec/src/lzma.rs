//! MicroLZMA: liblzma for the levels that search a lot, a Rust encoder for the fast ones, liblzma to decode.
//!
//! Both encoders fill a fixed output by themselves. The first byte is the complement of the properties byte, which is
//! never zero: properties are below 225.

use std::ptr;

use liblzma_sys::{
    LZMA_FINISH, LZMA_OK, LZMA_PRESET_EXTREME, LZMA_STREAM_END, lzma_code, lzma_end,
    lzma_lzma_preset, lzma_microlzma_decoder, lzma_microlzma_encoder, lzma_options_lzma,
    lzma_stream,
};
use lzma_rust2::{LzmaOptions, MicroLzmaEncoder};

use crate::huge;
use crate::lz4::piece;
use crate::{EncodeFit, EncoderSpec, Fit};

/// Levels from here on are the "extreme" ones.
const EXTREME: i32 = 100;

/// The smallest output that both encoders can end a stream in. Unit: bytes.
const ROOM_MIN: usize = 6;

/// The least input that an encoder is shown at once. Unit: bytes.
const SHOWN_MIN: usize = 32 << 10;

/// Input of up to this size has an encoder with a dictionary of this size: tables in proportion to the dictionary are
/// cleared for each output. Unit: bytes.
const FEW: usize = 64 << 10;

/// The largest dictionary that a stream may use. Unit: bytes.
const DICT_MAX: usize = 8 << 20;

/// Whether the Rust encoder is the better one at this level: it is 1.8 times as fast in the fast mode, and on par with
/// liblzma at equal size in the normal mode, where liblzma is the reference.
pub(crate) fn rust_is_faster(level: i32) -> bool {
    (0..=3).contains(&level)
}

/// How much input to show an encoder: each copies what it is shown into its own buffer, up to several hundred
/// kilobytes, however little of it fits into the output.
struct Shown {
    ratio: usize,
}

impl Shown {
    const FIRST: Shown = Shown { ratio: 16 };

    /// Encodes with more and more input until it is not the input that ends the output.
    fn run(
        &mut self,
        src: &[u8],
        dst: &mut [u8],
        mut encode: impl FnMut(&[u8], &mut [u8]) -> Option<Fit>,
    ) -> Fit {
        if src.is_empty() || dst.len() < ROOM_MIN {
            return Fit::NOTHING;
        }
        let mut shown = (dst.len() * self.ratio).max(SHOWN_MIN);
        loop {
            let all = shown >= src.len();
            let part = if all { src } else { &src[..shown] };
            let Some(fit) = encode(part, dst).filter(|fit| fit.consumed > 0) else {
                return Fit::NOTHING;
            };
            // Close to the end of what it is shown an encoder finds shorter matches than there are.
            if all || fit.consumed + part.len() / 8 < part.len() {
                self.ratio = (3 * fit.consumed).div_ceil(dst.len()).max(4);
                return fit;
            }
            shown *= 4;
        }
    }
}

/// A stream object of the C library; its memory is kept from one use to the next.
struct Stream(lzma_stream);

// SAFETY: a stream is a plain object with heap memory; nothing in it belongs to the thread that made it.
unsafe impl Send for Stream {}

impl Stream {
    fn new() -> Self {
        // SAFETY: LZMA_STREAM_INIT of the library is all zero bits: null pointers and zero counts. The two enums of
        // the structure are plain integers in the bindings.
        Self(unsafe { std::mem::zeroed() })
    }

    /// A stream with large tables.
    fn with_tables() -> Self {
        let mut this = Self::new();
        this.0.allocator = huge::ALLOCATOR.as_ptr();
        this
    }

    /// Runs the coder over all of `src` into `dst`. Returns whether it reached its end, bytes read and bytes written.
    fn run(&mut self, src: &[u8], dst: &mut [u8]) -> (bool, usize, usize) {
        self.0.next_in = src.as_ptr();
        self.0.avail_in = src.len();
        self.0.next_out = dst.as_mut_ptr();
        self.0.avail_out = dst.len();
        // SAFETY: the caller has initialised a coder; the pointers and lengths are those of live slices.
        let result = unsafe { lzma_code(&mut self.0, LZMA_FINISH) };
        let moved = (
            result == LZMA_STREAM_END,
            src.len() - self.0.avail_in,
            dst.len() - self.0.avail_out,
        );
        self.0.next_in = ptr::null();
        self.0.next_out = ptr::null_mut();
        moved
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: the stream is zeroed or was initialised by the library; it is not used again.
        unsafe { lzma_end(&mut self.0) };
    }
}

/// The encoder of the C library.
pub(crate) struct NativeLzma {
    any: NativeEncoder,
    few: NativeEncoder,
    shown: Shown,
    window: usize,
}

/// A stream with its options, which stay the same, so that the library keeps its memory.
struct NativeEncoder {
    stream: Stream,
    options: Options,
}

/// Encoder options of the C library.
struct Options(lzma_options_lzma);

// SAFETY: plain numbers; the only pointers, to a preset dictionary and reserved ones, are null.
unsafe impl Send for Options {}

impl NativeLzma {
    pub(crate) fn new(spec: &EncoderSpec) -> Option<Self> {
        // SAFETY: the structure is plain data, for which zero bits are valid.
        let mut options: lzma_options_lzma = unsafe { std::mem::zeroed() };
        let preset = match spec.level {
            level @ EXTREME.. => u32::try_from(level - EXTREME).ok()? | LZMA_PRESET_EXTREME,
            level => u32::try_from(level).ok()?,
        };
        // SAFETY: `options` is a live structure of the right type.
        if unsafe { lzma_lzma_preset(&mut options, preset) } != 0 {
            return None;
        }
        let mut encoder = |dict: usize| {
            options.dict_size = u32::try_from(dict).ok()?;
            Some(NativeEncoder {
                stream: Stream::with_tables(),
                options: Options(options),
            })
        };
        let [few, any] = [spec.history().min(FEW), spec.history()].map(&mut encoder);
        Some(Self {
            any: any?,
            few: few?,
            shown: Shown::FIRST,
            window: spec.window,
        })
    }
}

impl EncodeFit for NativeLzma {
    fn reset(&mut self) {
        self.shown = Shown::FIRST;
    }

    fn fit(&mut self, input: &[u8], at: usize, dst: &mut [u8]) -> Fit {
        let src = piece(input, at, self.window);
        let NativeEncoder { stream, options } = match src.len() {
            ..=FEW => &mut self.few,
            _ => &mut self.any,
        };
        let options = &options.0;
        self.shown.run(src, dst, |src, dst| {
            // SAFETY: the stream is zeroed or was initialised by the library; `options` is complete.
            let ready = unsafe { lzma_microlzma_encoder(&mut stream.0, options) };
            if ready != LZMA_OK {
                return None;
            }
            let (ended, _, written) = stream.run(src, dst);
            // What was read says nothing; what went into the output is the encoder's total.
            let consumed = usize::try_from(stream.0.total_in).ok()?;
            ended.then_some(Fit { consumed, written })
        })
    }

    fn window(&self) -> usize {
        self.window
    }
}

/// The encoder in Rust.
pub(crate) struct RustLzma {
    any: MicroLzmaEncoder,
    few: MicroLzmaEncoder,
    shown: Shown,
    window: usize,
}

impl RustLzma {
    pub(crate) fn new(spec: &EncoderSpec) -> Option<Self> {
        let mut options = LzmaOptions::with_preset(u32::try_from(spec.level).ok()?);
        let mut encoder = |dict: usize| {
            options.dict_size = u32::try_from(dict).ok()?;
            MicroLzmaEncoder::new(&options).ok()
        };
        Some(Self {
            any: encoder(spec.history())?,
            few: encoder(spec.history().min(FEW))?,
            shown: Shown::FIRST,
            window: spec.window,
        })
    }
}

impl EncodeFit for RustLzma {
    fn reset(&mut self) {
        self.shown = Shown::FIRST;
    }

    fn fit(&mut self, input: &[u8], at: usize, dst: &mut [u8]) -> Fit {
        let src = piece(input, at, self.window);
        let encoder = match src.len() {
            ..=FEW => &mut self.few,
            _ => &mut self.any,
        };
        self.shown.run(src, dst, |src, dst| {
            encoder
                .compress_prefix(src, dst)
                .ok()
                .map(|(consumed, written)| Fit { consumed, written })
        })
    }

    fn window(&self) -> usize {
        self.window
    }
}

/// The decoder of the C library.
pub(crate) struct Decompressor {
    stream: Stream,
    /// Where bytes go that are not wanted.
    front: Vec<u8>,
}

/// Length of the piece in which unwanted bytes are decoded. Unit: bytes.
const FRONT: usize = 64 << 10;

const SHORT: &str = "lzma stream is broken or ends before the expected length";

impl Decompressor {
    pub(crate) fn new() -> Self {
        Self {
            stream: Stream::new(),
            front: Vec::new(),
        }
    }

    /// Decodes a whole stream to exactly `dst.len()` bytes.
    pub(crate) fn decode(&mut self, src: &[u8], dst: &mut [u8]) -> Result<(), &'static str> {
        self.run(src, dst, true)
    }

    /// Decodes until there are `dst.len()` bytes.
    pub(crate) fn decode_prefix(&mut self, src: &[u8], dst: &mut [u8]) -> Result<(), &'static str> {
        self.run(src, dst, false)
    }

    /// Decodes until there are `skip + dst.len()` bytes, and keeps the last of them.
    pub(crate) fn decode_part(
        &mut self,
        src: &[u8],
        skip: usize,
        dst: &mut [u8],
    ) -> Result<(), &'static str> {
        self.start(src.len(), skip.saturating_add(dst.len()), false)?;
        if self.front.is_empty() {
            self.front.resize(FRONT, 0);
        }
        let (mut read, mut skipped) = (0, 0);
        while skipped < skip {
            let n = (skip - skipped).min(FRONT);
            let (_, r, w) = self.stream.run(&src[read..], &mut self.front[..n]);
            if w != n {
                return Err(SHORT);
            }
            read += r;
            skipped += n;
        }
        let (_, _, written) = self.stream.run(&src[read..], dst);
        if written != dst.len() {
            return Err(SHORT);
        }
        Ok(())
    }

    fn start(&mut self, src_len: usize, dst_len: usize, exact: bool) -> Result<(), &'static str> {
        // Matches reach back to the start of the output at most. Powers of two, so that the library keeps its memory
        // from one call to the next.
        let dict = dst_len.clamp(4096, DICT_MAX).next_power_of_two();
        // SAFETY: the stream is zeroed or was initialised by the library.
        let ready = unsafe {
            lzma_microlzma_decoder(
                &mut self.stream.0,
                src_len as u64,
                dst_len as u64,
                u8::from(exact),
                dict as u32,
            )
        };
        if ready != LZMA_OK {
            return Err("the lzma decoder cannot be set up");
        }
        Ok(())
    }

    fn run(&mut self, src: &[u8], dst: &mut [u8], exact: bool) -> Result<(), &'static str> {
        self.start(src.len(), dst.len(), exact)?;
        let (ended, read, written) = self.stream.run(src, dst);
        if written != dst.len() {
            return Err(SHORT);
        }
        if exact && !(ended && read == src.len()) {
            return Err("lzma stream does not end where the output does");
        }
        Ok(())
    }
}
