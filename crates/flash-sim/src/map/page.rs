//! Page mapping: a flat table over the exported addresses.

use super::Map;
use crate::units::{Lba, Slot};
use std::ops::Range;

const NONE: u32 = u32::MAX;

/// Map with one entry of four bytes for every address.
pub struct PageMap {
    entries: Vec<u32>,
    mapped: u64,
}

impl PageMap {
    /// Creates an empty map of the addresses below `lbas`.
    pub fn new(lbas: u64) -> Self {
        Self {
            entries: vec![NONE; lbas as usize],
            mapped: 0,
        }
    }
}

impl Map for PageMap {
    fn get(&self, lba: Lba) -> Option<Slot> {
        let entry = *self.entries.get(usize::try_from(lba.0).ok()?)?;
        (entry != NONE).then_some(Slot(entry))
    }

    fn set(&mut self, lba: Lba, slot: Slot) -> Result<Option<Slot>, &'static str> {
        let entry = usize::try_from(lba.0)
            .ok()
            .and_then(|i| self.entries.get_mut(i))
            .ok_or("past the end of the page map")?;
        let old = std::mem::replace(entry, slot.0);
        self.mapped += u64::from(old == NONE);
        Ok((old != NONE).then_some(Slot(old)))
    }

    fn clear(&mut self, range: Range<u64>, freed: &mut dyn FnMut(Slot)) {
        let end = range.end.min(self.entries.len() as u64);
        if range.start >= end {
            return;
        }
        for entry in &mut self.entries[range.start as usize..end as usize] {
            if *entry != NONE {
                freed(Slot(*entry));
                *entry = NONE;
                self.mapped -= 1;
            }
        }
    }

    fn mapped(&self) -> u64 {
        self.mapped
    }

    fn bytes(&self) -> u64 {
        4 * self.entries.len() as u64
    }

    fn each(&self, visit: &mut dyn FnMut(Lba, Slot)) {
        for (lba, entry) in self.entries.iter().enumerate() {
            if *entry != NONE {
                visit(Lba(lba as u64), Slot(*entry));
            }
        }
    }

    fn assert_sound(&self) {
        let count = self.entries.iter().filter(|e| **e != NONE).count() as u64;
        assert_eq!(count, self.mapped, "mapped blocks of the page map");
    }
}
