//! Map header: 8 bytes before an index.

use crate::{Error, Result};

/// Flag: the compacted index has 2B packs.
pub const COMPACTED_2B: u16 = 0x01;
/// Flag: the index consists of encoded extents (FULL layout).
pub const EXTENTS: u16 = 0x01;
/// Flag: HEAD1 pclusters may have several blocks.
pub const BIG_1: u16 = 0x02;
/// Flag: HEAD2 and PLAIN pclusters may have several blocks.
pub const BIG_2: u16 = 0x04;
/// Flag: the last pcluster is inline, after the index.
pub const INLINE: u16 = 0x08;
/// Flag: uncompressed pclusters are interlaced.
pub const INTERLACED: u16 = 0x10;
/// Flag: the last extent is a fragment.
pub const FRAGMENT: u16 = 0x20;

/// Map header in decoded form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapHeader {
    /// The whole file is a fragment.
    WholeFragment {
        /// Position in the packed inode's data, below 2^63. Unit: bytes.
        offset: u64,
    },
    /// An index follows the header.
    Index {
        /// First word: fragment offset, length of the inline pcluster (upper half), or number of extents.
        word: u32,
        /// Flags such as [`BIG_1`].
        advise: u16,
        /// Algorithm ids of HEAD1 (low nibble) and HEAD2. With encoded extents: part of their number.
        algorithms: u8,
        /// log2 of the blocks in an lcluster (low nibble). With encoded extents: part of their number.
        cluster_bits: u8,
    },
}

impl MapHeader {
    /// Length of the map header. Unit: bytes.
    pub const LEN: usize = 8;

    /// Decodes the header from its 8 bytes.
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

    /// Encodes the header as its 8 bytes.
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
