//! Address types: logical block addresses of the host, slots and erase blocks of the device.

/// Size of a host block and of a slot of a flash page, the unit of mapping. Unit: bytes.
pub const SLOT_BYTES: usize = 4096;

/// Logical block address of the host. Unit: blocks of 4 KiB.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Lba(pub u64);

/// Physical address of a 4 KiB part of a flash page, counted over the whole device. Unit: slots.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Slot(pub u32);

/// Number of an erase block, counted over the whole device, die by die.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct EraseBlock(pub u32);
