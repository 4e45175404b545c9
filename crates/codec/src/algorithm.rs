//! Compression formats of EROFS images.

use std::fmt;

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
    /// One Zstandard frame, window up to 1 MiB.
    Zstd = 3,
}

impl Algorithm {
    /// True if this build of the crate decodes the format. LZ4 is always supported; each other format is a Cargo feature.
    #[must_use]
    pub const fn is_supported(self) -> bool {
        match self {
            Algorithm::Lz4 => true,
            Algorithm::Lzma => cfg!(feature = "lzma"),
            Algorithm::Deflate => cfg!(feature = "deflate"),
            Algorithm::Zstd => cfg!(feature = "zstd"),
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Algorithm::Lz4 => "lz4",
            Algorithm::Lzma => "lzma",
            Algorithm::Deflate => "deflate",
            Algorithm::Zstd => "zstd",
        })
    }
}
