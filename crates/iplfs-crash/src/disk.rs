//! Device that records its events in order.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tuff_iplfs::backend::{Blocks, MemDevice};
use tuff_iplfs::{BLOCK_SIZE, Block, BlockAddr, BlockDevice};

/// Event of a device.
#[derive(Clone, Debug)]
pub enum Event {
    /// Blocks written from an address on.
    Write(u64, Vec<Arc<Block>>),
    /// Range of blocks declared dead.
    Discard(Range<u64>),
    /// Barrier: every earlier event is durable.
    Flush,
}

/// Addresses that were ever written, whether or not the write survived.
#[derive(Clone, Debug, Default)]
pub struct Written(HashMap<u64, WrittenContent>);

/// Content that was written to an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum WrittenContent {
    Zeros,
    Bytes,
}

impl Written {
    fn contains(&self, addr: u64) -> bool {
        self.0.contains_key(&addr)
    }

    /// Returns whether only zeros were ever written to an address. Such a block reads the same whether or not a write
    /// survived.
    pub fn only_zeros(&self, addr: u64) -> bool {
        self.0.get(&addr) == Some(&WrittenContent::Zeros)
    }

    /// Returns these addresses and those that `events` wrote.
    #[must_use]
    pub fn with(&self, events: &[Event]) -> Self {
        let mut all = self.clone();
        for event in events {
            if let Event::Write(addr, blocks) = event {
                for (at, block) in (*addr..).zip(blocks) {
                    let content = WrittenContent::from_block(block);
                    all.0
                        .entry(at)
                        .and_modify(|was| *was = was.and(content))
                        .or_insert(content);
                }
            }
        }
        all
    }
}

impl WrittenContent {
    fn from_block(block: &Block) -> Self {
        if block.iter().all(|b| *b == 0) {
            Self::Zeros
        } else {
            Self::Bytes
        }
    }

    fn and(self, other: Self) -> Self {
        if other == Self::Zeros { self } else { other }
    }
}

/// Device in memory that records its events and verifies that no address is written twice.
pub struct CrashDisk {
    content: MemDevice,
    record: Mutex<Record>,
    fixed_end: u64,
}

struct Record {
    events: Vec<Event>,
    /// Addresses written before this recording started.
    before: Arc<Written>,
    written: BTreeSet<u64>,
    violations: Vec<String>,
}

/// Size of a zone of the device. Unit: blocks.
const ZONE_BLOCKS: u64 = 16;

impl CrashDisk {
    /// Creates a device that holds `blocks`. `written` is every address ever written, also by writes that a crash
    /// undid.
    pub fn new(blocks: Blocks, written: Arc<Written>, fixed_end: u64) -> Self {
        let record = Record {
            events: Vec::new(),
            before: written,
            written: BTreeSet::new(),
            violations: Vec::new(),
        };
        Self {
            content: MemDevice::with(1, Some(ZONE_BLOCKS)).holding(blocks),
            record: Mutex::new(record),
            fixed_end,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the recorded events.
    pub fn events(&self) -> Vec<Event> {
        self.lock().events.clone()
    }

    /// Number of recorded events.
    pub fn position(&self) -> usize {
        self.lock().events.len()
    }

    /// Returns every block that the device holds.
    pub fn blocks(&self) -> Blocks {
        self.content.blocks()
    }

    /// Returns every address ever written.
    pub fn written(&self) -> Written {
        let record = self.lock();
        record.before.with(&record.events)
    }

    /// Returns the violations of the device contract by the volume.
    pub fn violations(&self) -> Vec<String> {
        self.lock().violations.clone()
    }
}

impl BlockDevice for CrashDisk {
    fn read(&self, addr: BlockAddr, buf: &mut [u8]) -> io::Result<()> {
        self.content.read(addr, buf)
    }

    fn write(&self, addr: BlockAddr, data: &[u8]) -> io::Result<()> {
        let mut record = self.lock();
        let (blocks, _) = data.as_chunks::<BLOCK_SIZE>();
        let blocks: Vec<Arc<Block>> = blocks.iter().map(|block| Arc::new(*block)).collect();
        for at in addr.0..addr.0 + blocks.len() as u64 {
            if at >= self.fixed_end && (record.before.contains(at) || !record.written.insert(at)) {
                record
                    .violations
                    .push(format!("block {at:#x} was written twice"));
            }
        }
        record.events.push(Event::Write(addr.0, blocks));
        self.content.write(addr, data)
    }

    fn flush(&self) -> io::Result<()> {
        self.lock().events.push(Event::Flush);
        Ok(())
    }

    fn prepare(&self, blocks: Range<u64>) -> io::Result<bool> {
        let mut record = self.lock();
        let zero = Arc::new([0; BLOCK_SIZE]);
        for at in blocks.clone() {
            if record.before.contains(at) || record.written.contains(&at) {
                let what = format!("block {at:#x} was prepared after it was written");
                record.violations.push(what);
            }
            self.content.write(BlockAddr(at), &zero[..])?;
        }
        let zeros = blocks.clone().map(|_| zero.clone()).collect();
        record.events.push(Event::Write(blocks.start, zeros));
        Ok(true)
    }

    fn discard(&self, blocks: Range<u64>) -> io::Result<()> {
        let mut record = self.lock();
        record.events.push(Event::Discard(blocks.clone()));
        self.content.discard(blocks)
    }

    fn allocated(&self, blocks: Range<u64>) -> io::Result<Vec<Range<u64>>> {
        self.content.allocated(blocks)
    }

    fn knows_allocated(&self) -> bool {
        true
    }

    fn zone_blocks(&self) -> Option<u64> {
        self.content.zone_blocks()
    }

    fn release_zone(&self, zone: u64) -> io::Result<()> {
        self.discard(zone * ZONE_BLOCKS..(zone + 1) * ZONE_BLOCKS)?;
        self.content.release_zone(zone)
    }

    fn zones(&self, zones: Range<u64>) -> io::Result<Vec<u64>> {
        self.content.zones(zones)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_byte_makes_an_address_more_than_zeros() {
        let block = |fill: u8| Arc::new([fill; BLOCK_SIZE]);
        let first = Written::default().with(&[
            Event::Write(4, vec![block(0), block(0), block(7)]),
            Event::Discard(4..5),
        ]);
        let then = first.with(&[Event::Write(5, vec![block(1), block(0)])]);
        let zeros = |w: &Written| (4..8).map(|a| w.only_zeros(a)).collect::<Vec<_>>();
        assert_eq!(zeros(&first), [true, true, false, false]);
        assert_eq!(zeros(&then), [true, false, false, false]);
        assert!(then.contains(6) && !then.contains(7));
    }
}
