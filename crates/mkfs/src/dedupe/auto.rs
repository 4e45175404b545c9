//! Automatic choice of the compression of each file, from a sample of it.
//!
//! ```text
//! three samples ──► LZ4 ──► incompressible, even byte frequencies?   store uncompressed
//!                   └───► both compressions ──► is the saving of the dense one worth its slower decoding?
//! ```
//!
//! A choice depends on the content alone. Duplicates therefore get the same choice, at any number
//! of threads.

use crate::Result;
use crate::options::{Auto, Compression, Metadata, Options};
use crate::pack::content::FileContent;
use crate::pack::encoder::new_encoder;
use tuff_codec::{Encoder, EncoderSpec, Method};
use tuff_format::features::Feature;

/// Compression of one file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Choice {
    /// Default compression of the options.
    #[default]
    Default,
    /// Compression that decodes faster.
    Fast,
    /// The file is stored uncompressed.
    Stored,
}

/// Minimum size of a file to sample. For shorter files, storing and packing differ little. Unit:
/// bytes.
const SAMPLED_SIZE_MIN: u64 = 16 << 10;
/// Length of each of the three samples. Unit: bytes.
const SAMPLE_LEN: usize = 32 << 10;
/// Data counts as incompressible if LZ4 saves less than one part in this many.
const INCOMPRESSIBLE_SHARE: usize = 32;
/// Minimum saving of the dense compression over the fast one. Unit: thousandths.
const DENSE_SAVING_MIN: usize = 100;
/// Minimum saving for programs, which are read at random, page by page.
const DENSE_SAVING_MIN_PROGRAM: usize = 220;

impl Auto {
    /// Sets the options of this mode for the whole image, as far as its kernel supports them.
    pub fn apply(self, options: &mut Options) {
        let kernel = options.kernel;
        let method = |method: Method, level| {
            Some(Compression {
                method,
                level,
                dict: None,
            })
        };
        options.compression.auto = Some(self);
        options.compression.default = match self {
            Self::Speed => method(Method::Lz4, Method::Lz4.default_level()),
            Self::Size if kernel.supports(Feature::LZMA) => method(Method::Lzma, 6),
            Self::Size => method(Method::Lz4hc, 12),
            Self::Balanced if kernel.supports(Feature::ZSTD) => method(Method::Zstd, 9),
            Self::Balanced => method(Method::Lz4hc, Method::Lz4hc.default_level()),
        };
        if self == Self::Size && kernel.supports(Feature::BIG_PCLUSTER) {
            options.compression.cluster = 1 << 20;
            if kernel.supports(Feature::FRAGMENTS) {
                options.layout.fragments = crate::Fragments::All;
                options.layout.fragment_cluster = options.compression.cluster;
            }
            options.layout.unaligned = kernel.supports(Feature::ENCODED_EXTENTS);
            if kernel.supports(Feature::METABOX) {
                options.metadata.form = Metadata::Compressed;
                options.metadata.cluster = 256 << 10;
            }
        }
        options.fit_clusters();
    }

    /// Compression that decodes faster than the default, if this mode uses two.
    pub(crate) fn fast(self, options: &Options) -> Option<Compression> {
        let own = options.compression.default?;
        let fast = Compression {
            method: Method::Lz4hc,
            level: Method::Lz4hc.default_level(),
            dict: None,
        };
        (self == Self::Balanced && own.method == Method::Zstd).then_some(fast)
    }
}

/// Chooses compressions, with the encoders of one thread.
pub(crate) struct Chooser {
    lz4: Box<dyn Encoder>,
    /// Dense and fast encoder.
    dense_and_fast: Option<[Box<dyn Encoder>; 2]>,
    /// The default compression uses entropy coding.
    entropy_coding: bool,
    sample: Vec<u8>,
    out: Vec<u8>,
}

impl Chooser {
    /// Creates a chooser between two compressions, the dense one first. `counts` states that the
    /// default compression uses entropy coding.
    pub(crate) fn new(
        dense_and_fast: Option<[EncoderSpec; 2]>,
        entropy_coding: bool,
    ) -> Result<Self> {
        let build = |spec: EncoderSpec| new_encoder(&spec);
        Ok(Self {
            lz4: build(EncoderSpec::new(Method::Lz4, SAMPLE_LEN))?,
            dense_and_fast: match dense_and_fast {
                Some([dense, fast]) => Some([build(dense)?, build(fast)?]),
                None => None,
            },
            entropy_coding,
            sample: Vec::new(),
            out: Vec::new(),
        })
    }

    /// Chooses the compression of a file of `size` bytes. `packed` states that it goes into the
    /// packed inode, which has a single compression.
    pub(crate) fn choose(
        &mut self,
        content: &FileContent,
        size: u64,
        packed: bool,
    ) -> Result<Choice> {
        if size < SAMPLED_SIZE_MIN {
            return Ok(Choice::Default);
        }
        let reader = content.open()?;
        let piece = SAMPLE_LEN.min(usize::try_from(size).unwrap_or(SAMPLE_LEN));
        let count = size.div_ceil(piece as u64).min(3);
        self.sample.resize(piece * count as usize, 0);
        for (i, piece_of) in self.sample.chunks_exact_mut(piece).enumerate() {
            let at = (size - piece as u64) / (count - 1).max(1) * i as u64;
            reader.read_exact(piece_of, at)?;
        }
        let shrinks = (self.sample.chunks_exact(piece)).any(|bytes| {
            self.out.resize(piece, 0);
            self.lz4.reset();
            let fit = self.lz4.fit(bytes, 0, &mut self.out);
            let shrunk =
                fit.consumed == piece && fit.written < piece - piece / INCOMPRESSIBLE_SHARE;
            shrunk || self.entropy_coding && is_uneven(bytes)
        });
        if !shrinks {
            return Ok(Choice::Stored);
        }
        let Some([dense, fast]) = self.dense_and_fast.as_mut().filter(|_| !packed) else {
            return Ok(Choice::Default);
        };
        let program = self.sample.starts_with(b"\x7fELF");
        let saves = if program {
            DENSE_SAVING_MIN_PROGRAM
        } else {
            DENSE_SAVING_MIN
        };
        let dense = compressed_len(dense.as_mut(), &self.sample, &mut self.out);
        let fast = compressed_len(fast.as_mut(), &self.sample, &mut self.out);
        if dense * 1000 < fast * (1000 - saves) {
            Ok(Choice::Default)
        } else {
            Ok(Choice::Fast)
        }
    }
}

/// True if two bytes of the data are equal twice as often as in random data. Entropy coding then
/// saves at least one part in fifty, usually far more, even without matches.
fn is_uneven(bytes: &[u8]) -> bool {
    let mut entropy_coding = [0u64; 256];
    for byte in bytes {
        entropy_coding[usize::from(*byte)] += 1;
    }
    let pairs: u64 = entropy_coding.iter().map(|n| n * n).sum();
    let all = bytes.len() as u64;
    pairs * 128 > all * all
}

/// Compressed size of a sample. Unit: bytes, because a sample is too short to count blocks.
fn compressed_len(encoder: &mut dyn Encoder, sample: &[u8], out: &mut Vec<u8>) -> usize {
    encoder.reset();
    out.resize(sample.len().next_power_of_two(), 0);
    let (mut at, mut written) = (0, 0);
    while at < sample.len() {
        let fit = encoder.fit(sample, at, out);
        let took = fit.consumed.max(1);
        written += fit.written.min(took);
        at += took;
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;
    use tuff_testkit::content::noise;

    fn spec(method: Method, level: i32) -> EncoderSpec {
        EncoderSpec::new(method, 64 << 10).with_level(level)
    }

    fn choose(bytes: &[u8]) -> Choice {
        let dense_and_fast = [spec(Method::Zstd, 9), spec(Method::Lz4hc, 9)];
        choose_with(Chooser::new(Some(dense_and_fast), true).unwrap(), bytes)
    }

    fn choose_with(mut chooser: Chooser, bytes: &[u8]) -> Choice {
        let content = FileContent::Bytes(bytes.into());
        chooser.choose(&content, bytes.len() as u64, false).unwrap()
    }

    #[test]
    fn incompressible_data_is_stored() {
        assert_eq!(choose(&noise(1 << 20, 7)), Choice::Stored);
        assert_eq!(choose(&noise(SAMPLED_SIZE_MIN as usize, 7)), Choice::Stored);
        // One compressible sample is enough.
        let mut mixed = noise(1 << 20, 7);
        mixed[(1 << 20) - SAMPLE_LEN..].fill(7);
        assert_ne!(choose(&mixed), Choice::Stored);
    }

    #[test]
    fn digits_without_matches_need_entropy_coding() {
        let nibbles = noise(1 << 20, 7);
        let digits: Vec<u8> = nibbles
            .iter()
            .map(|b| b"0123456789ABCDEF"[usize::from(b & 15)])
            .collect();
        let choose =
            |entropy_coding| choose_with(Chooser::new(None, entropy_coding).unwrap(), &digits);
        assert_eq!(choose(true), Choice::Default);
        assert_eq!(choose(false), Choice::Stored);
    }

    #[test]
    fn the_dense_compression_must_save_enough() {
        // Letters without matches: only entropy coding helps.
        let letters: Vec<u8> = noise(200_000, 7)
            .iter()
            .map(|b| b"acgt"[usize::from(b & 3)])
            .collect();
        assert_eq!(choose(&letters), Choice::Default);
        // Repeated noise: both find the matches, and nothing else helps.
        assert_eq!(choose(&noise(20_000, 7).repeat(15)), Choice::Fast);
    }

    #[test]
    fn every_mode_fits_every_kernel() {
        for kernel in tuff_format::features::KernelVersion::LONG_TERM {
            for auto in [Auto::Size, Auto::Balanced, Auto::Speed] {
                let mut options = Options::for_kernel(kernel);
                auto.apply(&mut options);
                options.check().unwrap();
            }
        }
    }
}
