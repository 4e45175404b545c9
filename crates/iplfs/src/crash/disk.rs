//! A device that remembers what it was told, in order.

use crate::areas::{Addr, BLOCK_SIZE, Block};
use crate::device::{BlockDevice, blocks_in};
use crate::mem::{Blocks, read_blocks, runs, to_block};
use std::collections::{BTreeSet, HashMap};
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// One thing a volume asked of its device.
#[derive(Clone, Debug)]
pub enum Event {
    /// Blocks written from an address on.
    Write(u64, Vec<Arc<Block>>),
    /// Blocks declared dead.
    Discard(Range<u64>),
    /// Everything before is durable.
    Flush,
}

/// Addresses that were ever written, whether or not the write lasted.
#[derive(Clone, Debug, Default)]
pub struct Written(HashMap<u64, Content>);

/// What was written to an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Content {
    Zeros,
    Bytes,
}

impl Written {
    fn contains(&self, addr: u64) -> bool {
        self.0.contains_key(&addr)
    }

    /// Whether all that was ever written there is zeros. Such a block reads the same whether it arrived or not.
    pub fn only_zeros(&self, addr: u64) -> bool {
        self.0.get(&addr) == Some(&Content::Zeros)
    }

    /// These, and what `events` wrote.
    #[must_use]
    pub fn with(&self, events: &[Event]) -> Self {
        let mut all = self.clone();
        for event in events {
            if let Event::Write(addr, blocks) = event {
                for (at, block) in (*addr..).zip(blocks) {
                    let content = Content::of(block);
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

impl Content {
    fn of(block: &Block) -> Self {
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

/// A device in memory that records its events and watches that no address is written twice.
pub struct CrashDisk {
    state: Mutex<State>,
    fixed_end: u64,
}

struct State {
    blocks: Blocks,
    events: Vec<Event>,
    /// Addresses written in earlier lives of the device.
    before: Arc<Written>,
    written: BTreeSet<u64>,
    violations: Vec<String>,
    /// Zones that exist, empty or not.
    zones: BTreeSet<u64>,
}

/// Size of a zone of the device. Unit: blocks.
const ZONE_BLOCKS: u64 = 16;

impl CrashDisk {
    /// A device that holds `blocks`. `written` is every address ever written, also by writes that a crash undid.
    pub fn new(blocks: Blocks, written: Arc<Written>, fixed_end: u64) -> Self {
        let zones = blocks.keys().map(|addr| addr / ZONE_BLOCKS).collect();
        let state = State {
            blocks,
            events: Vec::new(),
            before: written,
            written: BTreeSet::new(),
            violations: Vec::new(),
            zones,
        };
        Self {
            state: Mutex::new(state),
            fixed_end,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was recorded so far.
    pub fn events(&self) -> Vec<Event> {
        self.lock().events.clone()
    }

    /// Number of events recorded so far.
    pub fn position(&self) -> usize {
        self.lock().events.len()
    }

    /// Everything the device holds.
    pub fn blocks(&self) -> Blocks {
        self.lock().blocks.clone()
    }

    /// Every address ever written.
    pub fn written(&self) -> Written {
        let state = self.lock();
        state.before.with(&state.events)
    }

    /// Broken promises of the volume towards the device.
    pub fn violations(&self) -> Vec<String> {
        self.lock().violations.clone()
    }
}

impl BlockDevice for CrashDisk {
    fn read(&self, addr: Addr, buf: &mut [u8]) -> io::Result<()> {
        read_blocks(&self.lock().blocks, addr, buf);
        Ok(())
    }

    fn write(&self, addr: Addr, data: &[u8]) -> io::Result<()> {
        let mut state = self.lock();
        let blocks: Vec<Arc<Block>> = data.chunks_exact(BLOCK_SIZE).map(to_block).collect();
        for (at, block) in (addr.0..addr.0 + blocks_in(data)).zip(&blocks) {
            if at >= self.fixed_end && (state.before.contains(at) || !state.written.insert(at)) {
                state
                    .violations
                    .push(format!("block {at:#x} was written twice"));
            }
            state.blocks.insert(at, block.clone());
            state.zones.insert(at / ZONE_BLOCKS);
        }
        state.events.push(Event::Write(addr.0, blocks));
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        self.lock().events.push(Event::Flush);
        Ok(())
    }

    fn prepare(&self, blocks: Range<u64>) -> io::Result<bool> {
        let mut state = self.lock();
        let zero = to_block(&[0; BLOCK_SIZE]);
        for at in blocks.clone() {
            if state.before.contains(at) || state.written.contains(&at) {
                let what = format!("block {at:#x} was made ready after it was written");
                state.violations.push(what);
            }
            state.blocks.insert(at, zero.clone());
            state.zones.insert(at / ZONE_BLOCKS);
        }
        let zeros = blocks.clone().map(|_| zero.clone()).collect();
        state.events.push(Event::Write(blocks.start, zeros));
        Ok(true)
    }

    fn discard(&self, blocks: Range<u64>) -> io::Result<()> {
        let mut state = self.lock();
        let gone: Vec<u64> = state
            .blocks
            .range(blocks.clone())
            .map(|(addr, _)| *addr)
            .collect();
        for addr in gone {
            state.blocks.remove(&addr);
        }
        state.events.push(Event::Discard(blocks));
        Ok(())
    }

    fn allocated(&self, blocks: Range<u64>) -> io::Result<Vec<Range<u64>>> {
        Ok(runs(&self.lock().blocks, blocks))
    }

    fn knows_allocated(&self) -> bool {
        true
    }

    fn zone_blocks(&self) -> Option<u64> {
        Some(ZONE_BLOCKS)
    }

    fn release_zone(&self, zone: u64) -> io::Result<()> {
        self.discard(zone * ZONE_BLOCKS..(zone + 1) * ZONE_BLOCKS)?;
        self.lock().zones.remove(&zone);
        Ok(())
    }

    fn zones(&self, zones: Range<u64>) -> io::Result<Vec<u64>> {
        Ok(self.lock().zones.range(zones).copied().collect())
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
