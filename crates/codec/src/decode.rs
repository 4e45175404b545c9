//! Decoding of every format, with one reusable context per format.

use std::fmt;

use crate::{Algorithm, lz4};

/// Decoder of clusters. Contexts are created on first use and kept: creating one takes half the time of decoding 4 KiB.
#[derive(Default)]
pub struct Decoder {
    lz4_window: Option<lz4::WindowDecoder>,
    #[cfg(feature = "lzma")]
    lzma: Option<crate::lzma::Decompressor>,
    #[cfg(feature = "deflate")]
    deflate: Option<crate::deflate::Decompressor>,
    #[cfg(feature = "zstd")]
    zstd: Option<crate::zstd::Decompressor>,
}

/// Reason why compressed bytes could not be decoded, in one phrase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodeError {
    message: &'static str,
    unsupported: bool,
}

impl DecodeError {
    /// True if this build lacks the algorithm; the bytes may be valid.
    #[must_use]
    pub fn is_unsupported(&self) -> bool {
        self.unsupported
    }

    /// The error for an algorithm that [`Algorithm::is_supported`] denies.
    fn unsupported(algorithm: Algorithm) -> Self {
        Self {
            message: match algorithm {
                Algorithm::Lz4 => "lz4 decompression is not part of this build",
                Algorithm::Lzma => "lzma decompression is not part of this build",
                Algorithm::Deflate => "deflate decompression is not part of this build",
                Algorithm::Zstd => "zstd decompression is not part of this build",
            },
            unsupported: true,
        }
    }
}

impl From<&'static str> for DecodeError {
    fn from(message: &'static str) -> Self {
        Self {
            message,
            unsupported: false,
        }
    }
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.message)
    }
}

impl std::error::Error for DecodeError {}

/// Part of a stream's content that the caller requests.
#[derive(Clone, Copy)]
#[cfg_attr(
    not(any(feature = "deflate", feature = "lzma", feature = "zstd")),
    allow(dead_code)
)]
enum Part {
    /// All of it: the stream is exactly as long as the output.
    Whole,
    /// The bytes from `skip` on. Nothing past the output is decoded.
    From(usize),
}

impl Decoder {
    /// Creates a decoder without contexts.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Decodes all of `src`, which starts with the first byte of the stream (no padding), to exactly `dst.len()` bytes.
    ///
    /// # Errors
    /// Fails if `src` is malformed, decodes to another length, or has bytes left over. The content of `dst` is then
    /// unspecified.
    pub fn decode(
        &mut self,
        algorithm: Algorithm,
        src: &[u8],
        dst: &mut [u8],
    ) -> Result<(), DecodeError> {
        if src.is_empty() || dst.is_empty() {
            return Err("a compressed stream or its output is empty".into());
        }
        match algorithm {
            Algorithm::Lz4 => match lz4::decode(src, dst) {
                None => Err("lz4 block is broken or decodes to more than expected".into()),
                Some(n) if n != dst.len() => Err("lz4 block decodes to less than expected".into()),
                Some(_) => Ok(()),
            },
            _ => self.native(algorithm, src, Part::Whole, dst),
        }
    }

    /// Decodes the first `dst.len()` bytes of the content of `src`, and stops as early as the format permits. The rest
    /// of `src` is neither read nor checked.
    ///
    /// # Errors
    /// Fails if `src` is malformed before that point or decodes to less. The content of `dst` is then unspecified.
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
            return Err("a compressed stream is empty".into());
        }
        match algorithm {
            Algorithm::Lz4 => match lz4::decode_prefix(src, dst) {
                None => Err("lz4 block is broken".into()),
                Some(n) if n != dst.len() => {
                    Err("lz4 block ends before the expected length".into())
                }
                Some(_) => Ok(()),
            },
            _ => self.native(algorithm, src, Part::From(0), dst),
        }
    }

    /// Decodes bytes `[skip, skip + dst.len())` of the content of `src`, and stops after them as early as the format
    /// permits.
    ///
    /// Bytes before `skip` are decoded through a window and discarded: 68 KiB for LZ4, the stream's own window for
    /// Zstandard and LZMA. DEFLATE needs a buffer for all of them.
    ///
    /// # Errors
    /// See [`decode_prefix`](Self::decode_prefix).
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
            return Err("a compressed stream is empty".into());
        }
        match algorithm {
            Algorithm::Lz4 => self
                .lz4_window
                .get_or_insert_default()
                .decode(src, skip, dst)
                .ok_or_else(|| "lz4 block is broken or ends before the expected length".into()),
            _ => self.native(algorithm, src, Part::From(skip), dst),
        }
    }

    /// Decodes the LZ4 block that forms the last `src_len` bytes of `buf` to exactly `len` bytes at its start. `buf` must
    /// be at least [`in_place_len`](Self::in_place_len) bytes long.
    ///
    /// # Errors
    /// See [`decode`](Self::decode). Also fails if `buf` is too short.
    pub fn decode_in_place(
        &mut self,
        buf: &mut [u8],
        src_len: usize,
        len: usize,
    ) -> Result<(), DecodeError> {
        match lz4::decode_in_place(buf, src_len, len) {
            None => Err("lz4 block is broken or decodes to more than expected".into()),
            Some(n) if n != len => Err("lz4 block decodes to less than expected".into()),
            Some(_) => Ok(()),
        }
    }

    /// Returns the buffer length needed to decode an LZ4 block of `src_len` bytes to `len` bytes in place. Unit: bytes.
    #[must_use]
    pub fn in_place_len(src_len: usize, len: usize) -> usize {
        len.max(src_len) + lz4::in_place_margin(src_len)
    }

    /// Decodes `part` of a stream of any format but LZ4.
    fn native(
        &mut self,
        algorithm: Algorithm,
        src: &[u8],
        part: Part,
        dst: &mut [u8],
    ) -> Result<(), DecodeError> {
        match algorithm {
            #[cfg(feature = "lzma")]
            Algorithm::Lzma => {
                let lzma = self.lzma.get_or_insert_with(crate::lzma::Decompressor::new);
                match part {
                    Part::Whole => lzma.decode(src, dst)?,
                    Part::From(0) => lzma.decode_prefix(src, dst)?,
                    Part::From(skip) => lzma.decode_part(src, skip, dst)?,
                }
            }
            #[cfg(feature = "deflate")]
            Algorithm::Deflate => {
                let deflate = context(&mut self.deflate, crate::deflate::Decompressor::new)?;
                match part {
                    Part::Whole => deflate.decode(src, dst)?,
                    Part::From(0) => deflate.decode_prefix(src, dst)?,
                    Part::From(skip) => deflate.decode_part(src, skip, dst)?,
                }
            }
            #[cfg(feature = "zstd")]
            Algorithm::Zstd => {
                let zstd = context(&mut self.zstd, crate::zstd::Decompressor::new)?;
                match part {
                    Part::Whole => zstd.decode(src, dst)?,
                    Part::From(0) => zstd.decode_prefix(src, dst)?,
                    Part::From(skip) => zstd.decode_part(src, skip, dst)?,
                }
            }
            #[allow(unreachable_patterns)] // with all features enabled only LZ4 is left
            _ => {
                let _ = (src, part, dst);
                return Err(DecodeError::unsupported(algorithm));
            }
        }
        #[allow(unreachable_code)] // without any of the features
        Ok(())
    }
}

/// Returns the context in `slot`, creating it on first use.
#[cfg(any(feature = "deflate", feature = "zstd"))]
fn context<T>(
    slot: &mut Option<T>,
    create: impl FnOnce() -> Option<T>,
) -> Result<&mut T, DecodeError> {
    if slot.is_none() {
        *slot = create();
    }
    slot.as_mut()
        .ok_or_else(|| "not enough memory for a decoder".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_of_a_disabled_algorithm_are_unsupported() {
        for algorithm in [
            Algorithm::Lz4,
            Algorithm::Lzma,
            Algorithm::Deflate,
            Algorithm::Zstd,
        ] {
            let error = Decoder::new()
                .decode(algorithm, &[0xFF], &mut [0; 9])
                .unwrap_err();
            assert_eq!(error.is_unsupported(), !algorithm.is_supported());
        }
    }
}
