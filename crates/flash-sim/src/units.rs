//! Addresses: what the host names, and where it lies.

/// Bytes of a block of the host and of a slot of a flash page. The unit of mapping.
pub const SLOT_BYTES: usize = 4096;

/// Address of a block of the host. Unit: blocks of 4 KiB.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Lba(pub u64);

/// A 4 KiB part of a flash page, counted over the whole device. Unit: slots.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Slot(pub u32);

/// The unit of erasure, counted over the whole device, die by die.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct EraseBlock(pub u32);
