//! Block slots: address and checksum of a data block.

use crate::disk::address::BlockAddr;

/// Address of a data block, and its checksum.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Slot {
    /// Address, hole or reservation.
    pub addr: BlockAddr,
    /// CRC32C of the block, 0 unless mapped.
    pub crc: u32,
}

impl Slot {
    /// Hole: reads as zeros, takes no space.
    pub const HOLE: Slot = Slot {
        addr: BlockAddr::HOLE,
        crc: 0,
    };
    /// Reserved: reads as zeros, takes space.
    pub const RESERVED: Slot = Slot {
        addr: BlockAddr::RESERVED,
        crc: 0,
    };

    /// Lost to damage: reads as an error.
    pub const LOST: Slot = Slot {
        addr: BlockAddr::LOST,
        crc: 0,
    };

    /// Returns whether the slot takes space: mapped, reserved or lost. A lost block counts until it is overwritten.
    pub fn counts(self) -> bool {
        self.addr != BlockAddr::HOLE
    }
}
