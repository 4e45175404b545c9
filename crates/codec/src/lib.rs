//! Compression into outputs of a fixed size, and bounded decompression. All native libraries, SIMD and `unsafe` of the
//! workspace's compression live in this crate.
//!
//! * [`Encoder`]: fills at most `n` output bytes with as much input as fits, and returns the number of bytes consumed.
//!   [`EncoderSpec`] selects method, level and sizes, and creates an encoder.
//! * [`Decoder`]: decodes `src` to exactly `dst.len()` bytes, whole or as a prefix, and reuses its contexts.
//!
//! Guarantees:
//!
//! * An encoder never writes past the end of `dst`. Its output never begins with a zero byte, so that a
//!   right-aligned, zero-padded pcluster can be told from its padding.
//! * Output depends on the settings, on the bytes `input[at..]`, and on the input encoded since the last
//!   [`reset`](Encoder::reset), whose compression ratio is the starting point of the next search. It depends on
//!   neither earlier input nor the thread. A builder that resets at the start of each independent segment gets the
//!   same bytes for any number of threads and any order of the segments.
//! * A decoder reads untrusted bytes: it returns an error, never panics, and never writes past `dst`.
//!
//! # Features
//!
//! LZ4 is always decoded, without a native library. All features are on by default.
//!
//! | feature | adds | native library |
//! |---|---|---|
//! | `deflate` | DEFLATE | libdeflate |
//! | `lzma` | MicroLZMA | liblzma (decoder only) |
//! | `zstd` | Zstandard | libzstd |
//! | `encode` | encoders of LZ4 and of the algorithms above that are enabled | lz4 |
#![allow(unsafe_code)]

mod algorithm;
// The decoders and each encoder use some of the functions.
#[cfg_attr(
    not(all(feature = "encode", feature = "lzma", feature = "zstd")),
    allow(dead_code)
)]
mod bytes;
mod decode;
#[cfg(feature = "deflate")]
mod deflate;
#[cfg(feature = "encode")]
mod encode;
#[cfg(feature = "encode")]
mod factory;
#[cfg(all(feature = "encode", any(feature = "lzma", feature = "zstd")))]
#[cfg_attr(not(feature = "zstd"), allow(dead_code))]
mod huge_pages;
#[cfg(all(feature = "encode", any(feature = "deflate", feature = "zstd")))]
#[cfg_attr(not(feature = "zstd"), allow(dead_code))]
mod input_estimate;
#[cfg(feature = "encode")]
mod level_cascade;
mod lz4;
#[cfg(feature = "lzma")]
mod lzma;
#[cfg(all(feature = "encode", feature = "zstd"))]
mod size_search;
#[cfg(feature = "encode")]
mod spec;
#[cfg(feature = "zstd")]
mod zstd;

pub use algorithm::Algorithm;
pub use decode::{DecodeError, Decoder};
#[cfg(feature = "encode")]
pub use encode::{Encoder, Fit, TailFit, Trim};
pub use lz4::{lz4_decode, lz4_decodes_in_place, lz4_validate};
#[cfg(feature = "encode")]
pub use spec::{EncoderSpec, INPUT_MAX, Method, SpecError};
