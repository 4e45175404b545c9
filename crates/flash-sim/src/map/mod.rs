//! Translation of logical block addresses to slots.

mod interval;
mod page;
mod segment;

pub use interval::{Compaction, Interval, IntervalMap, Region};
pub use page::PageMap;

use crate::units::{Lba, Slot};
use std::ops::Range;

/// Map from logical blocks to slots, with the memory use of an implementation in firmware.
pub trait Map: Send {
    /// Returns the slot of a block. `None` if the block is unmapped.
    fn get(&self, lba: Lba) -> Option<Slot>;

    /// Maps a block to a slot and returns its previous slot. The error tells why the map cannot
    /// hold the address.
    fn set(&mut self, lba: Lba, slot: Slot) -> Result<Option<Slot>, &'static str>;

    /// Unmaps a range of blocks and calls `freed` with each slot. The cost depends on the mapped
    /// blocks, not on the length of the range.
    fn clear(&mut self, range: Range<u64>, freed: &mut dyn FnMut(Slot));

    /// Number of mapped blocks.
    fn mapped(&self) -> u64;

    /// Memory use in firmware. Unit: bytes.
    fn bytes(&self) -> u64;

    /// Performs the share of due maintenance that one command pays for. Returns the number of
    /// entries moved or examined.
    fn maintain(&mut self) -> u64 {
        0
    }

    /// Performs all due maintenance. Returns the number of entries moved or examined.
    fn maintain_all(&mut self) -> u64 {
        0
    }

    /// Calls `visit` with every mapped block in unspecified order.
    fn each(&self, visit: &mut dyn FnMut(Lba, Slot));

    /// Panics if the map is inconsistent. For tests.
    fn assert_sound(&self);
}
