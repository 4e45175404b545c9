//! Disk in memory with a write cache that simulates power cuts and bit errors.
//!
//! Invariants:
//!
//! * Writes before an acknowledged flush survive every power cut, unless the fault ignores flushes.
//! * Each later write survives completely, not at all, or with its first sectors, as the seed decides. So
//!   writes are reordered and torn.
//! * Without power every request is refused.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use tuff_testkit::Rng;

/// Size of the disk. mkfs.xfs needs at least 300 MiB. Unit: bytes.
pub(in crate::campaigns) const SIZE: u64 = 512 << 20;

/// Unit of atomic writes. Unit: bytes.
pub(in crate::campaigns) const SECTOR: u64 = 512;
/// Granularity of the storage in memory. Unit: bytes.
const PAGE: usize = 4096;

/// Content of a disk by page number. Absent pages are zero.
pub(in crate::campaigns) type Pages = HashMap<u64, Arc<[u8; PAGE]>>;

/// Error of a request that is out of range, unaligned, or arrives without power.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::campaigns) struct Refused;

/// Fault of a disk. Writes are counted from the moment the fault is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::campaigns) enum Fault {
    /// The disk works without faults.
    None,
    /// Power cut at a write. With `lies`, the disk acknowledges flushes and ignores them.
    Cut { write: u64, lies: bool },
    /// Bit errors: one write in `one_in` of the writes `from..to` stores one wrong bit.
    Bits { from: u64, to: u64, one_in: usize },
}

/// Simulated disk, shared by the FUSE server and the test.
pub(in crate::campaigns) struct Disk {
    size: u64,
    inner: Mutex<Inner>,
}

struct Inner {
    /// Content that reads return.
    now: Pages,
    /// Content that survives every power cut.
    flushed: Pages,
    /// Changes since the last flush, in order.
    waiting: Vec<Change>,
    fault: Fault,
    rng: Rng,
    writes: u64,
    wrong_bits: u64,
    power: bool,
}

enum Change {
    Bytes(u64, Vec<u8>),
    Zeros(u64, u64),
}

impl Disk {
    /// Creates a disk of zeros. `size` is in bytes and a multiple of the page size.
    pub(in crate::campaigns) fn new(size: u64) -> Self {
        assert_eq!(size % PAGE as u64, 0, "a size in whole pages");
        Self {
            size,
            inner: Mutex::new(Inner {
                now: Pages::new(),
                flushed: Pages::new(),
                waiting: Vec::new(),
                fault: Fault::None,
                rng: Rng::new(0),
                writes: 0,
                wrong_bits: 0,
                power: true,
            }),
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        // No code panics while the content is inconsistent, so a poisoned lock is usable.
        self.inner
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn within(&self, offset: u64, size: u64) -> Result<(), Refused> {
        let end = offset.checked_add(size).ok_or(Refused)?;
        match end <= self.size && offset.is_multiple_of(SECTOR) && size.is_multiple_of(SECTOR) {
            true => Ok(()),
            false => Err(Refused),
        }
    }

    /// Reads up to `size` bytes from any offset, fewer at the end of the disk.
    pub(in crate::campaigns) fn read(&self, offset: u64, size: usize) -> Result<Vec<u8>, Refused> {
        let inner = self.inner();
        if !inner.power {
            return Err(Refused);
        }
        let left = self.size.saturating_sub(offset);
        let mut bytes = vec![0; usize::try_from(left).map_or(size, |left| left.min(size))];
        each_page(offset, bytes.len(), |page, inside, part| {
            if let Some(found) = inner.now.get(&page) {
                let size = part.len();
                bytes[part].copy_from_slice(&found[inside..inside + size]);
            }
        });
        Ok(bytes)
    }

    /// Writes whole sectors to the cache.
    pub(in crate::campaigns) fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), Refused> {
        self.within(offset, bytes.len() as u64)?;
        let mut inner = self.inner();
        let bytes = inner.spoil(bytes.to_vec());
        inner.change(Change::Bytes(offset, bytes))
    }

    /// Sets whole sectors to zero.
    pub(in crate::campaigns) fn discard(&self, offset: u64, size: u64) -> Result<(), Refused> {
        self.within(offset, size)?;
        self.inner().change(Change::Zeros(offset, size))
    }

    /// Makes all writes durable, unless the fault ignores flushes.
    pub(in crate::campaigns) fn flush(&self) -> Result<(), Refused> {
        let mut inner = self.inner();
        if !inner.power {
            return Err(Refused);
        }
        if matches!(inner.fault, Fault::Cut { lies: true, .. }) {
            return Ok(());
        }
        let waiting = std::mem::take(&mut inner.waiting);
        for change in &waiting {
            change.apply(&mut inner.flushed, u64::MAX);
        }
        Ok(())
    }

    /// Sets the fault and resets the counters. `seed` decides which writes survive and which bits flip.
    pub(in crate::campaigns) fn set(&self, fault: Fault, seed: u64) {
        let mut inner = self.inner();
        inner.fault = fault;
        inner.rng = Rng::new(seed);
        inner.writes = 0;
        inner.wrong_bits = 0;
    }

    /// Cuts the power. Does nothing without power.
    pub(in crate::campaigns) fn cut(&self) {
        self.inner().cut();
    }

    /// True if the disk has power.
    pub(in crate::campaigns) fn has_power(&self) -> bool {
        self.inner().power
    }

    /// Restores the power and clears the fault.
    pub(in crate::campaigns) fn give_power(&self) {
        let mut inner = self.inner();
        if !inner.power {
            inner.now = inner.flushed.clone();
            inner.power = true;
        }
        inner.fault = Fault::None;
    }

    /// Returns the content that survives a power cut.
    pub(in crate::campaigns) fn flushed(&self) -> Pages {
        self.inner().flushed.clone()
    }

    /// Restores the power, clears the fault and replaces the content.
    pub(in crate::campaigns) fn reset(&self, pages: &Pages) {
        let mut inner = self.inner();
        inner.now = pages.clone();
        inner.flushed = pages.clone();
        inner.waiting.clear();
        inner.power = true;
        inner.fault = Fault::None;
    }

    /// Returns the number of writes and of wrong bits since the fault was set.
    pub(in crate::campaigns) fn counts(&self) -> (u64, u64) {
        let inner = self.inner();
        (inner.writes, inner.wrong_bits)
    }
}

impl Inner {
    fn spoil(&mut self, mut bytes: Vec<u8>) -> Vec<u8> {
        if let Fault::Bits { from, to, one_in } = self.fault
            && (from..to).contains(&self.writes)
            && !bytes.is_empty()
            && self.rng.below(one_in) == 0
        {
            let bit = self.rng.below(bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
            self.wrong_bits += 1;
        }
        bytes
    }

    fn change(&mut self, change: Change) -> Result<(), Refused> {
        if !self.power {
            return Err(Refused);
        }
        change.apply(&mut self.now, u64::MAX);
        self.waiting.push(change);
        self.writes += 1;
        match self.fault {
            Fault::Cut { write, .. } if self.writes >= write => {
                self.cut();
                Err(Refused)
            }
            _ => Ok(()),
        }
    }

    fn cut(&mut self) {
        if !std::mem::replace(&mut self.power, false) {
            return;
        }
        for change in std::mem::take(&mut self.waiting) {
            let sectors = match self.rng.below(4) {
                0 => 0,
                1 => self.rng.draw() % (change.size() / SECTOR + 1),
                _ => u64::MAX,
            };
            change.apply(&mut self.flushed, sectors);
        }
    }
}

impl Change {
    fn size(&self) -> u64 {
        match self {
            Change::Bytes(_, bytes) => bytes.len() as u64,
            Change::Zeros(_, size) => *size,
        }
    }

    /// Applies at most the first `sectors` sectors of the change.
    fn apply(&self, pages: &mut Pages, sectors: u64) {
        let size = self.size().min(sectors.saturating_mul(SECTOR));
        // Fits: writes are in memory, and discards are parts of a disk in memory.
        let size = usize::try_from(size).expect("a size of memory");
        match self {
            Change::Bytes(offset, bytes) => each_page(*offset, size, |page, inside, part| {
                let page = pages.entry(page).or_insert_with(|| Arc::new([0; PAGE]));
                Arc::make_mut(page)[inside..inside + part.len()].copy_from_slice(&bytes[part]);
            }),
            Change::Zeros(offset, _) => {
                // The range may span many more pages than exist.
                let end = offset + size as u64;
                pages.retain(|number, page| {
                    let first = number * PAGE as u64;
                    let inside = |at: u64| (at.clamp(first, first + PAGE as u64) - first) as usize;
                    let range = inside(*offset)..inside(end);
                    if !range.is_empty() && range.len() < PAGE {
                        Arc::make_mut(page)[range.clone()].fill(0);
                    }
                    range.len() < PAGE
                });
            }
        }
    }
}

/// Calls `what` for each page of a range with the page number, the offset in the page and the part of the
/// range.
fn each_page(offset: u64, size: usize, mut what: impl FnMut(u64, usize, std::ops::Range<usize>)) {
    let mut done = 0;
    while done < size {
        let at = offset + done as u64;
        let inside = (at % PAGE as u64) as usize;
        let part = done..size.min(done + PAGE - inside);
        done = part.end;
        what(at / PAGE as u64, inside, part);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 1 << 16;

    fn cut_at(write: u64) -> Fault {
        Fault::Cut { write, lies: false }
    }

    #[test]
    fn a_disk_that_ignores_flushes_loses_flushed_writes() {
        let lost = (0..64).any(|seed| {
            let disk = Disk::new(SIZE);
            let (write, lies) = (2, true);
            disk.set(Fault::Cut { write, lies }, seed);
            disk.write(0, &[1; 512]).unwrap();
            disk.flush().unwrap();
            disk.cut();
            disk.give_power();
            disk.read(0, 512).unwrap() == [0; 512]
        });
        assert!(lost);
    }

    #[test]
    fn a_power_cut_keeps_flushed_writes_and_first_sectors_of_others() {
        let mut seen = [false; 3];
        for seed in 0..64 {
            let disk = Disk::new(SIZE);
            disk.write(0, &[1; 8192]).unwrap();
            disk.flush().unwrap();
            disk.set(cut_at(1), seed);
            assert_eq!(disk.write(4096, &[2; 8192]), Err(Refused));
            assert!(!disk.has_power());
            assert_eq!(disk.read(0, 512), Err(Refused));
            disk.give_power();
            let found = disk.read(0, 12288).unwrap();
            assert_eq!(found[..4096], [1; 4096]);
            let new = found[4096..].iter().take_while(|b| **b == 2).count();
            assert_eq!(new as u64 % SECTOR, 0);
            let rest: Vec<u8> = (4096 + new..12288).map(|at| u8::from(at < 8192)).collect();
            assert_eq!(found[4096 + new..], rest);
            seen[usize::from(new > 0) + usize::from(new == 8192)] = true;
        }
        assert_eq!(seen, [true; 3]);
    }

    #[test]
    fn a_later_write_may_survive_without_an_earlier_one() {
        let out_of_order = (0..64).any(|seed| {
            let disk = Disk::new(SIZE);
            disk.set(cut_at(2), seed);
            disk.write(0, &[1; 512]).unwrap();
            assert_eq!(disk.write(512, &[2; 512]), Err(Refused));
            disk.give_power();
            disk.read(0, 1024).unwrap()[..] == [[0; 512], [2; 512]].concat()[..]
        });
        assert!(out_of_order);
    }

    #[test]
    fn bit_errors_are_in_the_selected_writes() {
        let disk = Disk::new(SIZE);
        let (from, to, one_in) = (1, 3, 1);
        disk.set(Fault::Bits { from, to, one_in }, 7);
        for n in 0..4 {
            disk.write(n * 4096, &[0xFF; 4096]).unwrap();
        }
        let zeros = |n: u64| -> u32 {
            let page = disk.read(n * 4096, 4096).unwrap();
            page.iter().map(|byte| byte.count_zeros()).sum()
        };
        assert_eq!([0, 1, 2, 3].map(zeros), [0, 1, 1, 0]);
        assert_eq!(disk.counts(), (4, 2));
    }

    #[test]
    fn discarded_sectors_are_zero_and_writes_past_the_end_are_refused() {
        let disk = Disk::new(SIZE);
        disk.write(0, &[3; 16384]).unwrap();
        disk.discard(512, 12288).unwrap();
        let found = disk.read(0, 16384).unwrap();
        assert_eq!(found.iter().filter(|b| **b == 3).count(), 4096);
        assert_eq!(disk.write(SIZE, &[0; 512]), Err(Refused));
        assert_eq!(disk.write(1, &[0; 512]), Err(Refused));
        assert_eq!(disk.discard(u64::MAX - 511, 512), Err(Refused));
        assert_eq!(disk.read(SIZE - 512, 1024).unwrap().len(), 512);
        assert_eq!(disk.read(SIZE, 1024).unwrap().len(), 0);
        // A discard inside a page keeps the rest of it.
        disk.write(0, &[3; 8192]).unwrap();
        disk.discard(512, 1024).unwrap();
        disk.discard(3584, 1024).unwrap();
        let found = disk.read(0, 8192).unwrap();
        let zeros: Vec<usize> = (0..16).filter(|n| found[n * 512] == 0).collect();
        assert_eq!(zeros, [1, 2, 7, 8]);
    }

    #[test]
    fn a_reset_restores_flushed_content() {
        let disk = Disk::new(SIZE);
        disk.write(0, &[1; 512]).unwrap();
        disk.flush().unwrap();
        let state = disk.flushed();
        disk.write(0, &[2; 512]).unwrap();
        disk.cut();
        disk.reset(&state);
        assert_eq!(disk.read(0, 512).unwrap(), [1; 512]);
    }
}
