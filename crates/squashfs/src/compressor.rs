//! Compressors of images, and decoding of one block with bounds on memory.

use crate::error::{Error, Result};
use crate::lzo;
use flate2::{FlushDecompress, Status};
use liblzma::stream::{Action, Stream};

/// Largest memory of a decoder of xz or LZMA, whose dictionaries have at most the length of a block. Unit: bytes.
const LZMA_MEMORY_MAX: u64 = 16 << 20;

/// Compressor of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compressor {
    /// zlib streams, which squashfs-tools calls gzip.
    Zlib,
    /// LZMA streams with the header of `.lzma` files.
    Lzma,
    /// LZO1X streams, which end in a marker.
    Lzo,
    /// xz streams, with filters or without.
    Xz,
    /// LZ4 blocks, without a frame.
    Lz4,
    /// Zstandard frames, one for each block.
    Zstd,
}

impl Compressor {
    /// Returns the compressor with this number in the superblock.
    pub(crate) fn from_number(number: u16) -> Result<Self> {
        Ok(match number {
            1 => Self::Zlib,
            2 => Self::Lzma,
            3 => Self::Lzo,
            4 => Self::Xz,
            5 => Self::Lz4,
            6 => Self::Zstd,
            _ => {
                return Err(Error::Unsupported(format!(
                    "compressor {number}; zlib, lzma, lzo, xz, lz4 and zstd are 1 to 6"
                )));
            }
        })
    }
}

/// Decoder of blocks. It keeps the contexts of its libraries.
pub(crate) struct Decompressor {
    compressor: Compressor,
    zlib: Option<flate2::Decompress>,
    zstd: Option<zstd::bulk::Decompressor<'static>>,
}

impl Decompressor {
    pub(crate) fn new(compressor: Compressor) -> Self {
        Self {
            compressor,
            zlib: None,
            zstd: None,
        }
    }

    /// Decodes a block to at most `dst.len()` bytes. Returns their number; `None` for a block that is malformed or longer.
    pub(crate) fn decode(&mut self, src: &[u8], dst: &mut [u8]) -> Option<usize> {
        match self.compressor {
            Compressor::Zlib => {
                let zlib = self
                    .zlib
                    .get_or_insert_with(|| flate2::Decompress::new(true));
                zlib.reset(true);
                let status = zlib.decompress(src, dst, FlushDecompress::Finish).ok()?;
                let written = usize::try_from(zlib.total_out()).ok()?;
                (status == Status::StreamEnd).then_some(written)
            }
            Compressor::Lzma => lzma(Stream::new_lzma_decoder(LZMA_MEMORY_MAX).ok()?, src, dst),
            Compressor::Xz => lzma(
                Stream::new_stream_decoder(LZMA_MEMORY_MAX, 0).ok()?,
                src,
                dst,
            ),
            Compressor::Lzo => lzo::decode(src, dst),
            Compressor::Lz4 => tuff_codec::lz4_decode(src, dst),
            Compressor::Zstd => {
                if self.zstd.is_none() {
                    self.zstd = Some(zstd::bulk::Decompressor::new().ok()?);
                }
                let zstd = self.zstd.as_mut()?;
                zstd.decompress_to_buffer(src, dst).ok()
            }
        }
    }
}

fn lzma(mut stream: Stream, src: &[u8], dst: &mut [u8]) -> Option<usize> {
    let status = stream.process(src, dst, Action::Finish).ok()?;
    let written = usize::try_from(stream.total_out()).ok()?;
    (status == liblzma::stream::Status::StreamEnd).then_some(written)
}
