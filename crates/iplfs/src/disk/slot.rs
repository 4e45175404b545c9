//! Block slots: the address of a block of a file, with its checksum.

use crate::disk::address::BlockAddr;

/// A block of a file: where it is and what it must sum to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Slot {
    /// Address, hole or reservation.
    pub addr: BlockAddr,
    /// CRC32C of the block, 0 unless mapped.
    pub crc: u32,
}

impl Slot {
    /// A hole.
    pub const HOLE: Slot = Slot {
        addr: BlockAddr::HOLE,
        crc: 0,
    };
    /// Reserved, reads as zeros.
    pub const RESERVED: Slot = Slot {
        addr: BlockAddr::RESERVED,
        crc: 0,
    };

    /// Lost to damage, reads as an error.
    pub const LOST: Slot = Slot {
        addr: BlockAddr::LOST,
        crc: 0,
    };

    /// True if the slot takes space: mapped, reserved, or lost, which counts until it is overwritten.
    pub fn counts(self) -> bool {
        self.addr != BlockAddr::HOLE
    }
}
