//! A device that remembers what it was told, in order.

use crate::areas::{Addr, BLOCK_SIZE, Block};
use crate::device::{BlockDevice, blocks_in};
use crate::mem::{Blocks, read_blocks, runs, to_block};
use std::collections::{BTreeSet, HashSet};
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

/// A device in memory that records its events and watches that no address is written twice.
pub struct CrashDisk {
    state: Mutex<State>,
    fixed_end: u64,
}

struct State {
    blocks: Blocks,
    events: Vec<Event>,
    /// Addresses written in earlier lives of the device.
    before: Arc<HashSet<u64>>,
    written: BTreeSet<u64>,
    violations: Vec<String>,
    /// Zones that exist, empty or not.
    zones: BTreeSet<u64>,
}

/// Size of a zone of the device. Unit: blocks.
const ZONE_BLOCKS: u64 = 16;

impl CrashDisk {
    /// A device that holds `blocks`. `written` is every address ever written, also by writes that a crash undid.
    pub fn new(blocks: Blocks, written: Arc<HashSet<u64>>, fixed_end: u64) -> Self {
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
    pub fn written(&self) -> HashSet<u64> {
        let state = self.lock();
        state.before.iter().chain(&state.written).copied().collect()
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
            if at >= self.fixed_end && (state.before.contains(&at) || !state.written.insert(at)) {
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
            if state.before.contains(&at) || state.written.contains(&at) {
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
