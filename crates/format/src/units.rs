//! Unit types: block addresses, lengths, devices, inode numbers and the block size.

use crate::{Error, Result};
use core::fmt;

/// Address of a block: its number in the unified address space, or on one device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockAddr(pub u64);

impl BlockAddr {
    /// Byte position of the block. `None` if it does not fit in 64 bits.
    pub const fn position(self, bits: BlockBits) -> Option<u64> {
        self.0.checked_mul(bits.size())
    }

    /// Address of the block `count` blocks later, at most the largest address.
    pub const fn saturating_add(self, count: u64) -> Self {
        Self(self.0.saturating_add(count))
    }
}

impl From<u32> for BlockAddr {
    fn from(block: u32) -> Self {
        Self(block.into())
    }
}

impl fmt::Display for BlockAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Length of data in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteLen(pub u64);

impl ByteLen {
    /// Returns the number of blocks that hold the data.
    pub const fn blocks(self, bits: BlockBits) -> u64 {
        bits.count(self.0)
    }
}

impl fmt::Display for ByteLen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Device that holds data: the primary device, or a slot of the device table counted from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId(pub u16);

impl DeviceId {
    /// Device with the superblock. Its addresses are those of the unified address space, which also contains each device
    /// with a unified address.
    pub const PRIMARY: Self = Self(0);

    /// Index in the device table. `None` for the primary device.
    pub fn slot(self) -> Option<usize> {
        usize::from(self.0).checked_sub(1)
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Number of an inode: its position in slots of 32 bytes.
///
/// Bit 63 marks an inode in the metabox inode's data instead of the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nid(pub u64);

impl Nid {
    const METABOX: u64 = 1 << 63;

    /// Nid of the inode in this slot of the metabox inode's data.
    pub const fn in_the_metabox(slot: u64) -> Self {
        Self(slot | Self::METABOX)
    }

    /// True if the inode is in the metabox inode's data.
    pub const fn in_metabox(self) -> bool {
        self.0 & Self::METABOX != 0
    }

    /// Byte position of the inode: in the metabox inode's data, or in the image, where slot 0 is at `meta_blkaddr`.
    /// `None` if it does not fit in 64 bits.
    pub fn position(self, bits: BlockBits, meta_blkaddr: BlockAddr) -> Option<u64> {
        let slot = (self.0 & !Self::METABOX).checked_mul(32)?;
        if self.in_metabox() {
            Some(slot)
        } else {
            slot.checked_add(meta_blkaddr.position(bits)?)
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

/// Block size as a power of two: 9 (512 bytes) to 16 (64 KiB).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockBits(u8);

impl BlockBits {
    /// Blocks of 4 KiB, which every kernel mounts.
    pub const B4K: Self = Self(12);

    /// Checks that `bits` is in range.
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

    /// Block size. Unit: bytes.
    pub const fn size(self) -> u64 {
        1 << self.0
    }

    /// Block size as an index type. Unit: bytes.
    pub const fn size_usize(self) -> usize {
        1 << self.0
    }

    /// Length of `blocks` blocks. `None` if it does not fit in 64 bits.
    pub const fn len_of(self, blocks: u64) -> Option<ByteLen> {
        match blocks.checked_mul(self.size()) {
            Some(bytes) => Some(ByteLen(bytes)),
            None => None,
        }
    }

    /// Number of blocks that hold `bytes` bytes.
    pub const fn count(self, bytes: u64) -> u64 {
        bytes.div_ceil(self.size())
    }

    /// Offset of byte position `pos` in its block.
    pub const fn within(self, pos: u64) -> u64 {
        pos & (self.size() - 1)
    }
}

/// Rounds `x` up to a multiple of `a`, saturating at the top of the range.
pub fn round_up(x: u64, a: u64) -> u64 {
    match x % a {
        0 => x,
        rest => x.saturating_add(a - rest),
    }
}
