//! Decoding of physical clusters. Independent of inodes and devices.

use crate::{Error, Place};

use super::fetch::Fetched;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use tuff_codec::{Algorithm, DecodeError, Decoder};
use tuff_format::BlockBits;
use tuff_format::cluster::Coding;

/// Error in the encoded bytes of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Broken {
    /// The first block, which may start with padding, is all zero.
    Empty,
    /// The cluster holds this many bytes, fewer than its extent. Unit: bytes.
    Short(usize),
    /// The algorithm id is not defined by the format.
    Algorithm(u8),
    /// Error of the decompressor.
    Codec(DecodeError),
}

impl Broken {
    /// Returns the error for `place`: `Unsupported` if the algorithm is not part of the build, otherwise
    /// `Corrupt`.
    pub(crate) fn at(self, place: impl Into<Place>) -> Error {
        match self {
            Self::Codec(e) if e.is_unsupported() => Error::unsupported(place, e),
            _ => Error::corrupt(place, self),
        }
    }
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("the first block is all zero, expected compressed bytes"),
            Self::Short(n) => write!(f, "the cluster holds {n} bytes, fewer than its extent"),
            Self::Algorithm(id) => write!(f, "unknown algorithm {id}"),
            Self::Codec(e) => e.fmt(f),
        }
    }
}

/// Part of a cluster's content to decode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DecodeScope {
    /// All content. Unused input, or output of another length, is an error.
    All,
    /// A prefix of the content that fills the output.
    Prefix,
}

/// Parameters that all clusters of an image share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Form {
    pub(crate) bits: BlockBits,
    /// Whether compressed bytes are at the end of their cluster, after zero padding. LZ4 images from before
    /// Linux 5.3 have them at the start, without a stored length.
    pub(crate) right_aligned: bool,
}

/// Maps an algorithm id of the format to the codec.
pub(crate) fn algorithm(id: u8) -> Result<Algorithm, Broken> {
    Ok(match id {
        0 => Algorithm::Lz4,
        1 => Algorithm::Lzma,
        2 => Algorithm::Deflate,
        3 => Algorithm::Zstd,
        id => return Err(Broken::Algorithm(id)),
    })
}

/// Returns the name of a coding for messages.
pub(crate) fn name(coding: Coding) -> &'static str {
    match coding {
        Coding::Stored => "stored",
        Coding::Interlaced => "interlaced",
        Coding::Compressed(0) => "lz4",
        Coding::Compressed(1) => "lzma",
        Coding::Compressed(2) => "deflate",
        Coding::Compressed(_) => "zstd",
    }
}

/// Strips the zero padding before the compressed stream. The padding is shorter than a block.
pub(crate) fn strip(src: &[u8], bits: BlockBits) -> Result<&[u8], Broken> {
    let first = &src[..src.len().min(bits.size_usize())];
    let zeros = first.iter().position(|b| *b != 0).ok_or(Broken::Empty)?;
    Ok(&src[zeros..])
}

/// Decodes the first `dst.len()` bytes of an extent whose file offset is `la`.
///
/// `len` is the length of the extent. `scope` applies only to [`Coding::Compressed`].
pub(crate) fn decode(
    decoder: &mut Decoder,
    coding: Coding,
    src: &[u8],
    form: Form,
    (la, len): (u64, u64),
    scope: DecodeScope,
    dst: &mut [u8],
) -> Result<(), Broken> {
    match coding {
        Coding::Stored => {
            let part = src.get(..dst.len()).ok_or(Broken::Short(src.len()))?;
            dst.copy_from_slice(part);
        }
        Coding::Interlaced => {
            for (from, to) in interlaced(form.bits, la, len, src.len() as u64, 0, dst.len() as u64)
            {
                let from = from.start as usize..from.end as usize;
                let part = src.get(from).ok_or(Broken::Short(src.len()))?;
                dst[to.start as usize..to.end as usize].copy_from_slice(part);
            }
        }
        Coding::Compressed(id) => {
            let algorithm = algorithm(id)?;
            if !form.right_aligned {
                return decoder
                    .decode_prefix(algorithm, src, dst)
                    .map_err(Broken::Codec);
            }
            let stream = strip(src, form.bits)?;
            match scope {
                DecodeScope::All => decoder.decode(algorithm, stream, dst),
                DecodeScope::Prefix => decoder.decode_prefix(algorithm, stream, dst),
            }
            .map_err(Broken::Codec)?;
        }
    }
    Ok(())
}

type Span = std::ops::Range<u64>;

/// Maps bytes `[skip, skip + n)` of an interlaced (rotated) extent to its cluster of `plen` bytes. Yields up
/// to two pairs of a range in the cluster and a range in the output.
///
/// The byte of file offset x is stored at x % block size. The head of the extent is in the last block of the
/// cluster; the rest starts at the first byte of the cluster.
pub(crate) fn interlaced(
    bits: BlockBits,
    la: u64,
    len: u64,
    plen: u64,
    skip: u64,
    n: u64,
) -> impl Iterator<Item = (Span, Span)> {
    let at = bits.within(la);
    let head = (bits.size() - at).min(len);
    let last_block = plen.saturating_sub(bits.size());
    let end = skip + n;
    let first = (skip < head).then(|| {
        let stop = end.min(head);
        (
            last_block + at + skip..last_block + at + stop,
            0..stop - skip,
        )
    });
    let second = (end > head).then(|| {
        let from = skip.max(head);
        (from - head..end - head, from - skip..n)
    });
    first.into_iter().chain(second)
}

/// Decompression contexts and buffers of one thread, reused from cluster to cluster.
#[derive(Default)]
pub(crate) struct Worker {
    pub(crate) decoder: Decoder,
    pub(crate) fetched: Fetched,
}

/// Pool of idle workers.
#[derive(Default)]
pub(crate) struct Workers(Mutex<Vec<Worker>>);

impl Workers {
    /// Runs `f` with exclusive use of a worker from the pool.
    pub(crate) fn with<T>(&self, f: impl FnOnce(&mut Worker) -> T) -> T {
        let mut worker = self.pool().pop().unwrap_or_default();
        let result = f(&mut worker);
        // The fetched bytes stay valid in the pool: an image does not change while it is open.
        self.pool().push(worker);
        result
    }

    fn pool(&self) -> std::sync::MutexGuard<'_, Vec<Worker>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rotated_bytes_come_back_in_file_order() {
        // Block of 512 bytes; the extent starts at offset 500 of a block and is 100 bytes long.
        let bits = BlockBits::new(9).unwrap();
        let mut src = vec![0u8; 512];
        for x in 0..100u64 {
            src[((500 + x) % 512) as usize] = x as u8;
        }
        let mut dst = [0; 100];
        let mut decoder = Decoder::new();
        decode(
            &mut decoder,
            Coding::Interlaced,
            &src,
            Form {
                bits,
                right_aligned: true,
            },
            (500, 100),
            DecodeScope::All,
            &mut dst,
        )
        .unwrap();
        assert!(dst.iter().enumerate().all(|(i, b)| *b == i as u8));
        // Every part of the extent is mapped correctly as well.
        for skip in 0..100 {
            for n in 0..100 - skip {
                let mut got = vec![255; n as usize];
                for (from, to) in interlaced(bits, 500, 100, 512, skip, n) {
                    got[to.start as usize..to.end as usize]
                        .copy_from_slice(&src[from.start as usize..from.end as usize]);
                }
                assert!((skip..skip + n).eq(got.iter().map(|b| u64::from(*b))));
            }
        }
    }

    #[test]
    fn padding_is_looked_for_in_the_first_block_only() {
        let bits = BlockBits::new(9).unwrap();
        let mut src = vec![0; 1024];
        src[512] = 1;
        assert_eq!(strip(&src, bits), Err(Broken::Empty));
        src[511] = 2;
        assert_eq!(strip(&src, bits).unwrap().len(), 513);
    }
}
