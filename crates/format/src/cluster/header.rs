//! The map header: 8 bytes in front of every index.

use crate::{Error, Result};

/// 2-byte packs are used (COMPACT).
pub const COMPACTED_2B: u16 = 0x01;
/// Encoded extents are used (FULL layout).
pub const EXTENTS: u16 = 0x01;
/// HEAD1 clusters may span blocks.
pub const BIG_1: u16 = 0x02;
/// HEAD2 and PLAIN clusters may span blocks.
pub const BIG_2: u16 = 0x04;
/// The last cluster lies behind the index.
pub const INLINE: u16 = 0x08;
/// Stored clusters are rotated.
pub const INTERLACED: u16 = 0x10;
/// The last extent lies in the packed inode.
pub const FRAGMENT: u16 = 0x20;

/// The map header, decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapHeader {
    /// All of the file is a fragment at this position of the packed inode's data.
    WholeFragment {
        /// Unit: bytes, below 2^63.
        offset: u64,
    },
    /// An index follows.
    Index {
        /// First word: fragment offset, inline size in its upper half, or number of extents.
        word: u32,
        /// Bits such as [`BIG_1`].
        advise: u16,
        /// Algorithms of HEAD1 (low nibble) and HEAD2; part of the extent count with encoded extents.
        algorithms: u8,
        /// log2 of the lcluster size over the block size (low nibble); part of the extent count, too.
        cluster_bits: u8,
    },
}

impl MapHeader {
    /// Length. Unit: bytes.
    pub const LEN: usize = 8;

    /// Decodes the header.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let &[b0, b1, b2, b3, b4, b5, b6, b7, ..] = bytes else {
            return Err(Error::corrupt("compression map header"));
        };
        if b7 & 0x80 != 0 {
            let offset = u64::from_le_bytes([b0, b1, b2, b3, b4, b5, b6, b7 & 0x7F]);
            return Ok(Self::WholeFragment { offset });
        }
        Ok(Self::Index {
            word: u32::from_le_bytes([b0, b1, b2, b3]),
            advise: u16::from_le_bytes([b4, b5]),
            algorithms: b6,
            cluster_bits: b7,
        })
    }

    /// The header's bytes.
    pub fn encode(&self) -> [u8; Self::LEN] {
        match *self {
            Self::WholeFragment { offset } => (offset | 1 << 63).to_le_bytes(),
            Self::Index {
                word,
                advise,
                algorithms,
                cluster_bits,
            } => {
                let [a, b, c, d] = word.to_le_bytes();
                let [e, f] = advise.to_le_bytes();
                [a, b, c, d, e, f, algorithms, cluster_bits]
            }
        }
    }
}
