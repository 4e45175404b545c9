//! Translation: which slot holds a block of the host.

mod interval;
mod page;
mod segment;

pub use interval::{Compaction, Interval, IntervalMap, Region};
pub use page::PageMap;

use crate::units::{Lba, Slot};
use std::ops::Range;

/// A map from blocks to slots, with the memory that firmware would spend on it.
pub trait Map: Send {
    /// The slot of a block.
    fn get(&self, lba: Lba) -> Option<Slot>;

    /// Makes a block lie in a slot; returns the slot it lay in. The error says why the address does not fit.
    fn set(&mut self, lba: Lba, slot: Slot) -> Result<Option<Slot>, &'static str>;

    /// Forgets a range of blocks, calling `freed` with each slot. Cost follows what is mapped, not the length of the range.
    fn clear(&mut self, range: Range<u64>, freed: &mut dyn FnMut(Slot));

    /// Blocks mapped.
    fn mapped(&self) -> u64;

    /// Memory that firmware would need now. Unit: bytes.
    fn bytes(&self) -> u64;

    /// Does some of the upkeep that is due, as one command may be asked to; returns how many entries it moved or looked at.
    fn maintain(&mut self) -> u64 {
        0
    }

    /// Does all upkeep that is due at once; returns how many entries it moved or looked at.
    fn maintain_all(&mut self) -> u64 {
        0
    }

    /// Every mapped block, in no order. For checks.
    fn each(&self, visit: &mut dyn FnMut(Lba, Slot));

    /// Panics if the map contradicts itself. For tests.
    fn assert_sound(&self);
}
