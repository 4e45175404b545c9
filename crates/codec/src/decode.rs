//! Decoding, with one reusable context per format.

use std::fmt;

use crate::{Algorithm, deflate, lz4, lzma, window, zstd};

/// Decodes clusters. Contexts are made when first needed and kept: at 4 KiB that is half of the time of a decode.
#[derive(Default)]
pub struct Decoder {
    lzma: Option<lzma::Decompressor>,
    deflate: Option<deflate::Decompressor>,
    zstd: Option<zstd::Decompressor>,
    window: Option<window::Window>,
    /// What DEFLATE decodes to in front of a part.
    front: Vec<u8>,
}

/// Why compressed bytes could not be decoded, in one phrase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodeError(&'static str);

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for DecodeError {}

/// Said when a context cannot be allocated.
const NO_MEMORY: &str = "not enough memory for a decoder";

impl Decoder {
    /// A decoder without any contexts yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Decodes all of `src`, which starts with the first byte of the stream (no padding), to exactly `dst.len()` bytes.
    ///
    /// # Errors
    /// When `src` is broken, decodes to another length, or has bytes left over. `dst` then holds anything.
    pub fn decode(
        &mut self,
        algorithm: Algorithm,
        src: &[u8],
        dst: &mut [u8],
    ) -> Result<(), DecodeError> {
        if src.is_empty() || dst.is_empty() {
            return Err(DecodeError("a compressed stream or its output is empty"));
        }
        match algorithm {
            Algorithm::Lz4 => match lz4::decode(src, dst) {
                None => Err("lz4 block is broken or decodes to more than expected"),
                Some(n) if n != dst.len() => Err("lz4 block decodes to less than expected"),
                Some(_) => Ok(()),
            },
            Algorithm::Lzma => self.lzma().decode(src, dst),
            Algorithm::Deflate => self.deflate()?.decode(src, dst),
            Algorithm::Zstd => self.zstd()?.decode(src, dst),
        }
        .map_err(DecodeError)
    }

    /// Decodes the first `dst.len()` bytes of what `src` decodes to, and stops as early as the format lets it. What
    /// follows in `src` is not looked at, and so not checked.
    ///
    /// # Errors
    /// When `src` is broken before that, or decodes to less. `dst` then holds anything.
    pub fn decode_prefix(
        &mut self,
        algorithm: Algorithm,
        src: &[u8],
        dst: &mut [u8],
    ) -> Result<(), DecodeError> {
        if dst.is_empty() {
            return Ok(());
        }
        if src.is_empty() {
            return Err(DecodeError("a compressed stream is empty"));
        }
        match algorithm {
            Algorithm::Lz4 => match lz4::decode_prefix(src, dst) {
                None => Err("lz4 block is broken"),
                Some(n) if n != dst.len() => Err("lz4 block ends before the expected length"),
                Some(_) => Ok(()),
            },
            Algorithm::Lzma => self.lzma().decode_prefix(src, dst),
            Algorithm::Deflate => self.deflate()?.decode_prefix(src, dst),
            Algorithm::Zstd => self.zstd()?.decode_prefix(src, dst),
        }
        .map_err(DecodeError)
    }

    /// Decodes bytes `[skip, skip + dst.len())` of what `src` decodes to, and stops behind them as early as the format
    /// lets it. What lies in front of them is decoded through a window and not kept: 68 KiB for LZ4, the stream's own
    /// window for Zstandard and LZMA. DEFLATE keeps all of it.
    ///
    /// # Errors
    /// As [`decode_prefix`](Self::decode_prefix).
    pub fn decode_part(
        &mut self,
        algorithm: Algorithm,
        src: &[u8],
        skip: usize,
        dst: &mut [u8],
    ) -> Result<(), DecodeError> {
        if dst.is_empty() {
            return Ok(());
        }
        if src.is_empty() {
            return Err(DecodeError("a compressed stream is empty"));
        }
        match algorithm {
            Algorithm::Lz4 => self
                .window
                .get_or_insert_default()
                .decode(src, skip, dst)
                .ok_or("lz4 block is broken or ends before the expected length"),
            Algorithm::Lzma => self.lzma().decode_part(src, skip, dst),
            Algorithm::Zstd => self.zstd()?.decode_part(src, skip, dst),
            Algorithm::Deflate => {
                let end = skip + dst.len();
                let mut front = std::mem::take(&mut self.front);
                if front.len() < end {
                    front.resize(end, 0);
                }
                let result = self.deflate()?.decode_prefix(src, &mut front[..end]);
                dst.copy_from_slice(&front[skip..end]);
                self.front = front;
                result
            }
        }
        .map_err(DecodeError)
    }

    /// Decodes the LZ4 block that is the last `src_len` bytes of `buf` to exactly `len` bytes at its start. `buf` must be
    /// at least [`in_place_len`](Self::in_place_len) long.
    ///
    /// # Errors
    /// As [`decode`](Self::decode), and if `buf` is too short.
    pub fn decode_in_place(
        &mut self,
        buf: &mut [u8],
        src_len: usize,
        len: usize,
    ) -> Result<(), DecodeError> {
        match lz4::decode_in_place(buf, src_len, len) {
            None => Err("lz4 block is broken or decodes to more than expected"),
            Some(n) if n != len => Err("lz4 block decodes to less than expected"),
            Some(_) => Ok(()),
        }
        .map_err(DecodeError)
    }

    /// How long a buffer must be to decode an LZ4 block of `src_len` bytes to `len` bytes in it. Unit: bytes.
    #[must_use]
    pub fn in_place_len(src_len: usize, len: usize) -> usize {
        len.max(src_len) + lz4::in_place_margin(src_len)
    }

    fn lzma(&mut self) -> &mut lzma::Decompressor {
        self.lzma.get_or_insert_with(lzma::Decompressor::new)
    }

    fn deflate(&mut self) -> Result<&mut deflate::Decompressor, DecodeError> {
        made(&mut self.deflate, deflate::Decompressor::new)
    }

    fn zstd(&mut self) -> Result<&mut zstd::Decompressor, DecodeError> {
        made(&mut self.zstd, zstd::Decompressor::new)
    }
}

/// Says whether LZ4 blocks decode to so many bytes each, without writing these: in two thirds of the time.
///
/// If `true`, [`Decoder::decode`] would succeed for all. If `false`, one of them is broken, or is of a kind that no
/// encoder writes and only the decoder can judge.
#[must_use]
pub fn lz4_all_decode<'a>(blocks: impl IntoIterator<Item = (&'a [u8], usize)>) -> bool {
    lz4::all_decode(blocks)
}

/// The context, made if there is none yet.
fn made<T>(slot: &mut Option<T>, make: impl FnOnce() -> Option<T>) -> Result<&mut T, DecodeError> {
    if slot.is_none() {
        *slot = make();
    }
    slot.as_mut().ok_or(DecodeError(NO_MEMORY))
}
