//! Device geometry: channels, dies, erase blocks, pages and slots.

use crate::units::{EraseBlock, Slot};

/// Geometry of a device.
///
/// ```text
///  slot number = ((lun * blocks_per_lun + block) * pages_per_block + page) * slots_per_page + slot in page
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// Buses to the dies.
    pub channels: u32,
    /// Independent dies (LUNs) on each channel.
    pub luns_per_channel: u32,
    /// Erase blocks of a LUN.
    pub blocks_per_lun: u32,
    /// Flash pages of an erase block.
    pub pages_per_block: u32,
    /// Slots of 4 KiB in a flash page.
    pub slots_per_page: u32,
    /// Largest number of blocks of 4 KiB that the host may have mapped at one time.
    pub exported_slots: u64,
}

impl Geometry {
    /// LUNs of the device.
    pub fn luns(&self) -> u32 {
        self.channels * self.luns_per_channel
    }

    /// Erase blocks of the device.
    pub fn blocks(&self) -> u32 {
        self.luns() * self.blocks_per_lun
    }

    /// Slots of an erase block.
    pub fn slots_per_block(&self) -> u32 {
        self.pages_per_block * self.slots_per_page
    }

    /// Slots of the device, spare ones included.
    pub fn raw_slots(&self) -> u64 {
        u64::from(self.blocks()) * u64::from(self.slots_per_block())
    }

    /// Channel of a LUN. Consecutive LUNs are on different channels.
    pub fn channel_of(&self, lun: u32) -> u32 {
        lun % self.channels
    }

    /// LUN of an erase block.
    pub fn lun_of(&self, block: EraseBlock) -> u32 {
        block.0 / self.blocks_per_lun
    }

    /// First slot of a page.
    pub fn page_start(&self, block: EraseBlock, page: u32) -> Slot {
        Slot((block.0 * self.pages_per_block + page) * self.slots_per_page)
    }

    /// Erase block of a slot.
    pub fn block_of(&self, slot: Slot) -> EraseBlock {
        EraseBlock(slot.0 / self.slots_per_block())
    }

    /// Page of a slot, counted inside its erase block.
    pub fn page_of(&self, slot: Slot) -> u32 {
        slot.0 / self.slots_per_page % self.pages_per_block
    }

    /// True if the geometry is usable: no dimension is zero, slot numbers fit in 32 bits, and every
    /// LUN has at least four spare erase blocks on average.
    pub fn is_sound(&self) -> bool {
        let parts = [
            self.channels,
            self.luns_per_channel,
            self.pages_per_block,
            self.slots_per_page,
        ];
        let spare = self.raw_slots().saturating_sub(self.exported_slots);
        parts.iter().all(|n| *n > 0)
            && self.raw_slots() < u64::from(u32::MAX)
            && spare >= u64::from(self.luns()) * 4 * u64::from(self.slots_per_block())
    }
}
