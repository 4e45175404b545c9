//! Zstandard: an encoder around the C library's match finders, and the C library as the decoder.
//!
//! Each output is one frame without dictionary id, checksum and content size. A frame that holds its content size may
//! be a single segment, whose window is the content, and that may exceed the window that the image announces.

#[cfg(feature = "encode")]
mod bits;
#[cfg(feature = "encode")]
mod block;
#[cfg(feature = "encode")]
mod compressor;
#[cfg(feature = "encode")]
mod continuation;
mod decode;
#[cfg(feature = "encode")]
mod double_hash;
#[cfg(feature = "encode")]
mod encode;
#[cfg(feature = "encode")]
mod fse;
#[cfg(feature = "encode")]
mod huffman;
mod library;
#[cfg(feature = "encode")]
mod library_finder;
#[cfg(feature = "encode")]
mod position;
#[cfg(feature = "encode")]
mod row_hash;
#[cfg(feature = "encode")]
mod sequences;
#[cfg(feature = "encode")]
mod single_hash;

pub(crate) use decode::Decompressor;
#[cfg(feature = "encode")]
pub(crate) use encode::ZstdEncoder;
