//! Block addresses: the area in the top bits, the offset inside the area below.
//!
//! ```text
//!  [area: 3 bits][offset: area_bits]      area 0 = metadata: fixed blocks, then the metadata log
//!                                         areas 1..=6 = the six logs by temperature      7 = unused
//! ```

use std::fmt;
use std::ops::Range;

/// Bytes in a block. The only block size of the format.
pub const BLOCK_SIZE: usize = 4096;

/// A block of bytes.
pub type Block = [u8; BLOCK_SIZE];

/// Allocates a block of zeros on the heap.
pub(crate) fn zero_block() -> Box<Block> {
    Box::new([0; BLOCK_SIZE])
}

/// Address of a block in the whole address space of a volume. Unit: blocks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct BlockAddr(pub u64);

impl BlockAddr {
    /// In a block slot: a hole. Block 0 is a superblock, so no file ever refers to it.
    pub const HOLE: BlockAddr = BlockAddr(0);
    /// In a block slot: space reserved by `fallocate` or a pending write, reads as zeros.
    pub const RESERVED: BlockAddr = BlockAddr(u64::MAX);

    /// In a block slot: a block that a repair could not save. Reading it is an error until it is overwritten or
    /// punched out.
    pub const LOST: BlockAddr = BlockAddr(u64::MAX - 1);

    /// Returns whether the slot names a block on the device.
    pub fn is_mapped(self) -> bool {
        !matches!(
            self,
            BlockAddr::HOLE | BlockAddr::RESERVED | BlockAddr::LOST
        )
    }
}

impl fmt::Debug for BlockAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl fmt::Display for BlockAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// Number of a node. An inode's number is the number of its node. 0 names nothing.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Nid(pub u32);

impl Nid {
    /// Stands for no node.
    pub const NONE: Nid = Nid(0);
    /// Number of the root directory.
    pub const ROOT: Nid = Nid(1);
}

impl fmt::Debug for Nid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl fmt::Display for Nid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Append-only log. Its number is the number of its area.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum Log {
    /// Blocks of the node address table, and parts of checkpoints that do not fit their pack.
    Meta = 0,
    /// Data blocks of directories.
    HotData = 1,
    /// File data of ordinary temperature.
    WarmData = 2,
    /// File data marked as cold.
    ColdData = 3,
    /// Inodes and direct nodes of directories.
    HotNode = 4,
    /// Inodes and direct nodes of everything else.
    WarmNode = 5,
    /// Indirect nodes and nodes of extended attributes.
    ColdNode = 6,
}

impl Log {
    /// Every log, in area order.
    pub const ALL: [Log; 7] = [
        Log::Meta,
        Log::HotData,
        Log::WarmData,
        Log::ColdData,
        Log::HotNode,
        Log::WarmNode,
        Log::ColdNode,
    ];

    /// The three logs of nodes, which roll-forward reads.
    pub const NODES: [Log; 3] = [Log::HotNode, Log::WarmNode, Log::ColdNode];

    /// Returns whether the log holds only blocks of files and directories.
    pub fn is_data(self) -> bool {
        matches!(self, Log::HotData | Log::WarmData | Log::ColdData)
    }

    /// Returns whether blocks of files may lie in the log. An `fsync` puts the data of a small change after its
    /// nodes, into the warm node log.
    pub fn may_hold_data(self) -> bool {
        self.is_data() || self == Log::WarmNode
    }

    /// Index into per-log tables, also the area number.
    pub fn index(self) -> usize {
        self as usize
    }
}

/// Division of the address space, fixed when the volume is formatted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// Bits of the offset inside an area, 29 to 58.
    pub area_bits: u8,
    /// Bits of the offset inside a section, the unit of discard bitmaps. 18 is 1 GiB.
    pub section_bits: u8,
    /// Bits of the offset inside a zone, the unit in which heads are moved after a crash.
    pub zone_bits: u8,
    /// Blocks of one checkpoint pack, two seals included.
    pub pack_blocks: u32,
}

/// Allowed range of `area_bits`.
pub(crate) const AREA_BITS: std::ops::RangeInclusive<u8> = 29..=58;

/// First block of pack A. The blocks before it hold the superblocks and space for later formats.
pub(crate) const PACK_START: u64 = 16;

impl Geometry {
    /// First block of pack 0 or 1.
    pub fn pack_start(&self, pack: usize) -> BlockAddr {
        BlockAddr(
            PACK_START
                + if pack == 0 {
                    0
                } else {
                    u64::from(self.pack_blocks)
                },
        )
    }

    /// First block of the metadata log. Blocks before it are overwritten in place, blocks after it never.
    pub fn fixed_end(&self) -> u64 {
        PACK_START + 2 * u64::from(self.pack_blocks)
    }

    /// Address of the third copy of the superblock: the only block of area 7, far from the other two copies.
    pub fn spare_superblock(&self) -> BlockAddr {
        BlockAddr(7 << self.area_bits)
    }

    /// Number of blocks in an area.
    pub fn area_blocks(&self) -> u64 {
        1 << self.area_bits
    }

    /// Number of blocks in a zone.
    pub fn zone_blocks(&self) -> u64 {
        1 << self.zone_bits
    }

    /// Address of a block of a log.
    pub fn addr(&self, log: Log, offset: u64) -> BlockAddr {
        BlockAddr(((log as u64) << self.area_bits) | offset)
    }

    /// Address range of a log between two offsets.
    pub fn range(&self, log: Log, offsets: Range<u64>) -> Range<u64> {
        // A sum, not an OR: the end offset may equal the size of the area.
        let base = (log as u64) << self.area_bits;
        base + offsets.start..base + offsets.end
    }

    /// Returns the log of a block and the offset in its area. `None` for the fixed blocks, area 7 and beyond.
    pub fn place(&self, addr: BlockAddr) -> Option<(Log, u64)> {
        let area = usize::try_from(addr.0 >> self.area_bits).ok()?;
        let log = *Log::ALL.get(area)?;
        let offset = addr.0 & (self.area_blocks() - 1);
        if log == Log::Meta && offset < self.fixed_end() {
            None
        } else {
            Some((log, offset))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_split_into_area_and_offset_and_back() {
        let geometry = Geometry {
            area_bits: 48,
            section_bits: 18,
            zone_bits: 18,
            pack_blocks: 256,
        };
        let addr = geometry.addr(Log::WarmNode, 77);
        assert_eq!(addr.0, (5 << 48) + 77);
        assert_eq!(geometry.place(addr), Some((Log::WarmNode, 77)));
        assert_eq!(geometry.place(BlockAddr(7 << 48)), None);
        assert_eq!(geometry.place(BlockAddr(0)), None);
        assert_eq!(geometry.place(BlockAddr(16 + 512)), Some((Log::Meta, 528)));
        assert_eq!(geometry.range(Log::ColdNode, 0..1 << 48).end, 7 << 48);
    }
}
