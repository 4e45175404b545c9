//! Numbers with a unit.

use crate::{Error, Result};
use core::fmt;

/// Number of an inode: its position in units of 32 bytes.
///
/// Bit 63 says that the position is inside the metabox inode's data instead of the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nid(pub u64);

impl Nid {
    const METABOX: u64 = 1 << 63;

    /// Number of the inode at a position in the metabox inode's data. Unit: 32 bytes.
    pub const fn in_the_metabox(position: u64) -> Self {
        Self(position | Self::METABOX)
    }

    /// True if the inode lies in the metabox inode's data.
    pub const fn in_metabox(self) -> bool {
        self.0 & Self::METABOX != 0
    }

    /// Byte position of the inode in its space, which for an ordinary inode starts at `meta_blkaddr`.
    /// `None` when it does not fit in 64 bits.
    pub fn position(self, bits: BlockBits, meta_blkaddr: u32) -> Option<u64> {
        let slot = (self.0 & !Self::METABOX).checked_mul(32)?;
        if self.in_metabox() {
            Some(slot)
        } else {
            slot.checked_add(bits.bytes(meta_blkaddr.into())?)
        }
    }
}

impl fmt::Display for Nid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.in_metabox() {
            write!(f, "metabox:{}", self.0 & !Self::METABOX)
        } else {
            self.0.fmt(f)
        }
    }
}

/// The block size as a power of two: 9 (512 bytes) to 16 (64 KiB).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockBits(u8);

impl BlockBits {
    /// Blocks of 4 KiB, what every kernel mounts.
    pub const B4K: Self = Self(12);

    /// Checks the range.
    pub fn new(bits: u8) -> Result<Self> {
        if (9..=16).contains(&bits) {
            Ok(Self(bits))
        } else {
            Err(Error::bad("log2 of the block size", bits.into(), "9 to 16"))
        }
    }

    /// log2 of the block size.
    pub const fn get(self) -> u8 {
        self.0
    }

    /// Unit: bytes.
    pub const fn size(self) -> u64 {
        1 << self.0
    }

    /// The same as an index type. Unit: bytes.
    pub const fn size_usize(self) -> usize {
        1 << self.0
    }

    /// First byte of block `addr`. `None` if it does not fit in 64 bits.
    pub const fn bytes(self, addr: u64) -> Option<u64> {
        addr.checked_mul(self.size())
    }

    /// Blocks needed for `bytes`.
    pub const fn count(self, bytes: u64) -> u64 {
        bytes.div_ceil(self.size())
    }

    /// Position inside the block.
    pub const fn within(self, bytes: u64) -> u64 {
        bytes & (self.size() - 1)
    }
}

/// `x` rounded up to a multiple of `a`, saturating at the top of the range.
pub fn round_up(x: u64, a: u64) -> u64 {
    match x % a {
        0 => x,
        rest => x.saturating_add(a - rest),
    }
}
