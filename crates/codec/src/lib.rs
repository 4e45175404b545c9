//! Compression, bytes to bytes: the only home of native libraries, SIMD and `unsafe`.
//!
//! Two directions, two small faces:
//!
//! * [`EncodeFit`]: fill at most `n` output bytes with as much input as fits, and say what was consumed.
//!   [`EncoderSpec`] says which method, level and sizes, and builds one.
//! * [`Decoder`]: `src` to exactly `dst.len()` bytes, whole or as a prefix, with contexts that are reused.
//!
//! What holds everywhere:
//!
//! * An encoder never writes past the end of `dst`, and its output never begins with a zero byte, so that a
//!   right-aligned, zero-padded cluster can be told from its padding.
//! * Output depends on the settings, on the bytes `input[at..]`, and on what was encoded since the last
//!   [`reset`](EncodeFit::reset): the ratio reached so far is where the next search starts. It depends on nothing
//!   else, neither on what came before that reset nor on the thread. A builder that resets at the start of each
//!   independent piece therefore gets the same bytes for any number of threads and any order of the pieces.
//! * A decoder reads foreign bytes: it returns an error, it never panics and never writes past `dst`.
#![allow(unsafe_code)]

mod bytes;
mod decode;
mod deflate;
mod frontier;
mod huge;
mod inplace;
mod lz4;
mod lzma;
mod probe;
mod search;
mod spec;
mod thrift;
mod window;
mod zstd;

pub use decode::{DecodeError, Decoder, lz4_all_decode};
pub use inplace::lz4_in_place;
pub use spec::{EncoderSpec, Method, SpecError, WINDOW_MAX};

/// A compression format. The discriminant is the format's number in EROFS images.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Algorithm {
    /// A raw LZ4 block.
    Lz4 = 0,
    /// MicroLZMA: an LZMA1 stream whose first byte holds the complemented properties.
    Lzma = 1,
    /// Raw DEFLATE, window up to 32 KiB.
    Deflate = 2,
    /// One Zstandard frame.
    Zstd = 3,
}

/// What one call of [`EncodeFit::fit`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fit {
    /// Input bytes that the output decodes to, counted from the start position. 0 when not even one byte fits.
    pub consumed: usize,
    /// Output bytes written, from the start of `dst`.
    pub written: usize,
}

impl Fit {
    /// Nothing fits.
    const NOTHING: Fit = Fit {
        consumed: 0,
        written: 0,
    };
}

/// When an output is ended early, at a multiple of a block, because little of it is behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trim {
    /// Outputs up to this length stay. Unit: bytes.
    pub keep: usize,
    /// Unit: bytes, a power of two from 512 on.
    pub block: usize,
    /// The most that may be behind. Unit: bytes, less than a block.
    pub most: usize,
}

impl Trim {
    /// The length that an output of `size` bytes should have instead.
    fn room(&self, size: usize) -> Option<usize> {
        let over = size % self.block;
        let trims = size > self.keep && size > self.block && (1..=self.most).contains(&over);
        trims.then(|| size - over)
    }
}

/// What one call of [`EncodeFit::fit_end`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FitEnd {
    /// What was written.
    pub fit: Fit,
    /// It was ended early.
    pub trimmed: bool,
}

impl From<Fit> for FitEnd {
    fn from(fit: Fit) -> Self {
        Self {
            fit,
            trimmed: false,
        }
    }
}

/// Fixed-output compression.
pub trait EncodeFit: Send {
    /// Starts on new input and forgets everything learnt. Called before the first [`fit`](Self::fit) on each `input`.
    fn reset(&mut self);

    /// Compresses the longest prefix of `input[at..]` that fits into `dst`.
    ///
    /// Between two calls of [`reset`](Self::reset), `input` is the same (it may have grown at its end) and `at` never
    /// decreases, so that an encoder may index the input once. At most [`window`](Self::window) bytes are consumed.
    fn fit(&mut self, input: &[u8], at: usize, dst: &mut [u8]) -> Fit;

    /// As [`fit`](Self::fit); but where all of `input[at..]` fits, and `trim` says that its output should be shorter, only as
    /// much of it as fits there. An encoder that cannot do that for little does not.
    fn fit_end(&mut self, input: &[u8], at: usize, dst: &mut [u8], trim: &Trim) -> FitEnd {
        let _ = trim;
        self.fit(input, at, dst).into()
    }

    /// The most input that one call consumes. Unit: bytes.
    fn window(&self) -> usize;
}
