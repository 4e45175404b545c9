//! `--auto`: how each file is stored, decided from a sample of it.
//!
//! ```text
//!  three pieces ──► LZ4 ──► hardly shrinks, and no byte is frequent?   stored, as it is
//!                     └───► both compressions ──► what the dense one saves is worth its slower decoding?
//! ```
//!
//! A decision depends on the content alone, so that twins are stored alike and threads do not matter.

use super::options::{Auto, Compression, Metadata, Options};
use super::pack::input::Input;
use crate::{Error, Result};
use tuff_codec::{EncodeFit, EncoderSpec, Method};
use tuff_format::features::Feature;

/// How one file is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Choice {
    /// As the options say.
    #[default]
    Default,
    /// With the compression that decodes faster.
    Fast,
    /// As it is.
    Stored,
}

/// Files from this length on are looked at; whether shorter ones are stored or packed makes no difference to speak of. Unit: bytes.
const LOOK_MIN: u64 = 16 << 10;
/// Length of a piece of a sample, three of which are taken. Unit: bytes.
const PIECE: usize = 32 << 10;
/// What shrinks by less than one part in so many under LZ4 counts as compressed already.
const STORE_BELOW: usize = 32;
/// The dense compression must save so much of what the fast one leaves. Unit: thousandths.
const DENSE_SAVES: usize = 100;
/// The same for programs, which are read page by page at random.
const DENSE_SAVES_PROGRAM: usize = 220;

impl Auto {
    /// Sets what this mode decides for the whole image, as far as the image's kernel goes.
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
                options.layout.fragments = super::Fragments::All;
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

    /// The compression that decodes faster than the options' own, where a mode has two.
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

/// Decides, with the encoders of one thread.
pub(crate) struct Chooser {
    lz4: Box<dyn EncodeFit>,
    /// Dense and fast.
    two: Option<[Box<dyn EncodeFit>; 2]>,
    /// The usual compression has fewer bits for frequent bytes.
    counts: bool,
    sample: Vec<u8>,
    out: Vec<u8>,
}

impl Chooser {
    /// A chooser between these compressions, the dense one first. `counts`: the usual one has fewer bits for frequent bytes.
    pub(crate) fn new(two: Option<[EncoderSpec; 2]>, counts: bool) -> Result<Self> {
        let build = |spec: EncoderSpec| spec.build().map_err(Error::usage);
        Ok(Self {
            lz4: build(EncoderSpec::new(Method::Lz4, PIECE))?,
            two: match two {
                Some([dense, fast]) => Some([build(dense)?, build(fast)?]),
                None => None,
            },
            counts,
            sample: Vec::new(),
            out: Vec::new(),
        })
    }

    /// How a file of `size` bytes is stored. `packed`: it goes into the packed inode, which has one compression.
    pub(crate) fn choose(&mut self, input: &Input, size: u64, packed: bool) -> Result<Choice> {
        if size < LOOK_MIN {
            return Ok(Choice::Default);
        }
        let reader = input.open()?;
        let piece = PIECE.min(usize::try_from(size).unwrap_or(PIECE));
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
            let shrunk = fit.consumed == piece && fit.written < piece - piece / STORE_BELOW;
            shrunk || self.counts && uneven(bytes)
        });
        if !shrinks {
            return Ok(Choice::Stored);
        }
        let Some([dense, fast]) = self.two.as_mut().filter(|_| !packed) else {
            return Ok(Choice::Default);
        };
        let program = self.sample.starts_with(b"\x7fELF");
        let saves = if program {
            DENSE_SAVES_PROGRAM
        } else {
            DENSE_SAVES
        };
        let dense = clusters(dense.as_mut(), &self.sample, &mut self.out);
        let fast = clusters(fast.as_mut(), &self.sample, &mut self.out);
        if dense * 1000 < fast * (1000 - saves) {
            Ok(Choice::Default)
        } else {
            Ok(Choice::Fast)
        }
    }
}

/// Whether two bytes of a piece are the same twice as often as two of noise: then some are frequent enough to save a part in
/// fifty, mostly far more, without any that repeat.
fn uneven(bytes: &[u8]) -> bool {
    let mut counts = [0u64; 256];
    for byte in bytes {
        counts[usize::from(*byte)] += 1;
    }
    let pairs: u64 = counts.iter().map(|n| n * n).sum();
    let all = bytes.len() as u64;
    pairs * 128 > all * all
}

/// What a sample takes. Unit: bytes, not blocks: a sample is too short for those.
fn clusters(encoder: &mut dyn EncodeFit, sample: &[u8], out: &mut Vec<u8>) -> usize {
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
    use crate::samples::noise;

    fn spec(method: Method, level: i32) -> EncoderSpec {
        EncoderSpec::new(method, 64 << 10).with_level(level)
    }

    fn choose(bytes: &[u8]) -> Choice {
        let two = [spec(Method::Zstd, 9), spec(Method::Lz4hc, 9)];
        choose_with(Chooser::new(Some(two), true).unwrap(), bytes)
    }

    fn choose_with(mut chooser: Chooser, bytes: &[u8]) -> Choice {
        let input = Input::Bytes(bytes.into());
        chooser.choose(&input, bytes.len() as u64, false).unwrap()
    }

    #[test]
    fn what_does_not_shrink_is_stored() {
        assert_eq!(choose(&noise(1 << 20, 7)), Choice::Stored);
        assert_eq!(choose(&noise(LOOK_MIN as usize, 7)), Choice::Stored);
        // One piece that does is enough.
        let mut mixed = noise(1 << 20, 7);
        mixed[(1 << 20) - PIECE..].fill(7);
        assert_ne!(choose(&mixed), Choice::Stored);
    }

    #[test]
    fn digits_without_repetition_are_worth_an_entropy_coder_and_no_other() {
        let nibbles = noise(1 << 20, 7);
        let digits: Vec<u8> = nibbles
            .iter()
            .map(|b| b"0123456789ABCDEF"[usize::from(b & 15)])
            .collect();
        let choose = |counts| choose_with(Chooser::new(None, counts).unwrap(), &digits);
        assert_eq!(choose(true), Choice::Default);
        assert_eq!(choose(false), Choice::Stored);
    }

    #[test]
    fn the_dense_compression_must_be_worth_it() {
        // Letters that no match helps with: only an entropy coder does.
        let letters: Vec<u8> = noise(200_000, 7)
            .iter()
            .map(|b| b"acgt"[usize::from(b & 3)])
            .collect();
        assert_eq!(choose(&letters), Choice::Default);
        // Noise that comes again: both find it, and nothing else.
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
