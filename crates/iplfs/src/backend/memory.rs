//! Device in memory, for tests and models.

use crate::device::{BlockDevice, blocks_in};
use crate::disk::address::{BLOCK_SIZE, Block, BlockAddr};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Blocks of a device, by address.
pub type Blocks = BTreeMap<u64, Arc<Block>>;

/// Sparse device in memory with a given granule and zone size. Writes are durable at once.
pub struct MemDevice {
    state: Mutex<Storage>,
    granule: u64,
    zone_blocks: Option<u64>,
}

struct Storage {
    blocks: Blocks,
    zones: BTreeSet<u64>,
    capacity: Option<u64>,
}

impl MemDevice {
    /// Creates an empty device that reclaims single blocks and has no zones.
    pub fn new() -> Self {
        Self::with(1, None)
    }

    /// Creates an empty device that reclaims `granule` blocks at a time and may have zones.
    pub fn with(granule: u64, zone_blocks: Option<u64>) -> Self {
        let state = Storage {
            blocks: Blocks::new(),
            zones: BTreeSet::new(),
            capacity: None,
        };
        Self {
            state: Mutex::new(state),
            granule,
            zone_blocks,
        }
    }

    /// Adds `blocks`, and the zones they lie in, to the device.
    #[must_use]
    pub fn holding(self, blocks: Blocks) -> Self {
        let mut state = self.lock();
        if let Some(zone_blocks) = self.zone_blocks {
            let zones = blocks.keys().map(|addr| addr / zone_blocks);
            state.zones.extend(zones);
        }
        state.blocks.extend(blocks);
        drop(state);
        self
    }

    /// Creates a device that reclaims single blocks, has no zones and holds `blocks`.
    pub fn from_blocks(blocks: Blocks) -> Self {
        Self::new().holding(blocks)
    }

    /// Returns the blocks of the device. The copy is cheap, because the blocks are shared.
    pub fn blocks(&self) -> Blocks {
        self.lock().blocks.clone()
    }

    /// Limits the device to `blocks` blocks. Writes that need more fail with `StorageFull`.
    pub fn set_capacity(&self, blocks: Option<u64>) {
        self.lock().capacity = blocks;
    }

    fn lock(&self) -> MutexGuard<'_, Storage> {
        // Every change below is one call, so a panic of another thread leaves the maps intact.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for MemDevice {
    fn default() -> Self {
        Self::new()
    }
}

fn read_blocks(blocks: &Blocks, addr: BlockAddr, buf: &mut [u8]) {
    for (i, out) in buf.chunks_exact_mut(BLOCK_SIZE).enumerate() {
        match blocks.get(&(addr.0 + i as u64)) {
            Some(block) => out.copy_from_slice(&block[..]),
            None => out.fill(0),
        }
    }
}

fn runs(blocks: &Blocks, range: Range<u64>) -> Vec<Range<u64>> {
    let mut runs: Vec<Range<u64>> = Vec::new();
    if range.start >= range.end {
        return runs;
    }
    for &addr in blocks.range(range).map(|(addr, _)| addr) {
        match runs.last_mut() {
            Some(run) if run.end == addr => run.end += 1,
            _ => runs.push(addr..addr + 1),
        }
    }
    runs
}

fn remove(blocks: &mut Blocks, range: Range<u64>) {
    let held: Vec<u64> = blocks.range(range).map(|(addr, _)| *addr).collect();
    for addr in held {
        blocks.remove(&addr);
    }
}

fn to_block(bytes: &[u8]) -> Arc<Block> {
    let mut block = [0; BLOCK_SIZE];
    block.copy_from_slice(bytes);
    Arc::new(block)
}

impl BlockDevice for MemDevice {
    fn read(&self, addr: BlockAddr, buf: &mut [u8]) -> io::Result<()> {
        read_blocks(&self.lock().blocks, addr, buf);
        Ok(())
    }

    fn write(&self, addr: BlockAddr, data: &[u8]) -> io::Result<()> {
        let mut state = self.lock();
        let new = (addr.0..addr.0 + blocks_in(data))
            .filter(|a| !state.blocks.contains_key(a))
            .count() as u64;
        if state
            .capacity
            .is_some_and(|limit| state.blocks.len() as u64 + new > limit)
        {
            return Err(io::ErrorKind::StorageFull.into());
        }
        for (i, bytes) in data.chunks_exact(BLOCK_SIZE).enumerate() {
            let at = addr.0 + i as u64;
            state.blocks.insert(at, to_block(bytes));
            if let Some(zone_blocks) = self.zone_blocks {
                state.zones.insert(at / zone_blocks);
            }
        }
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn discard(&self, blocks: Range<u64>) -> io::Result<()> {
        let start = blocks.start.next_multiple_of(self.granule);
        let end = blocks.end - blocks.end % self.granule;
        let mut state = self.lock();
        if start < end {
            remove(&mut state.blocks, start..end);
        }
        Ok(())
    }

    fn allocated(&self, blocks: Range<u64>) -> io::Result<Vec<Range<u64>>> {
        Ok(runs(&self.lock().blocks, blocks))
    }

    fn knows_allocated(&self) -> bool {
        true
    }

    fn granule(&self) -> u64 {
        self.granule
    }

    fn zone_blocks(&self) -> Option<u64> {
        self.zone_blocks
    }

    fn release_zone(&self, zone: u64) -> io::Result<()> {
        let Some(zone_blocks) = self.zone_blocks else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        let mut state = self.lock();
        let blocks = zone * zone_blocks..(zone + 1) * zone_blocks;
        remove(&mut state.blocks, blocks);
        state.zones.remove(&zone);
        Ok(())
    }

    fn zones(&self, zones: Range<u64>) -> io::Result<Vec<u64>> {
        if zones.start >= zones.end {
            return Ok(Vec::new());
        }
        Ok(self.lock().zones.range(zones).copied().collect())
    }

    fn free_blocks(&self) -> io::Result<Option<u64>> {
        let state = self.lock();
        Ok(state
            .capacity
            .map(|limit| limit.saturating_sub(state.blocks.len() as u64)))
    }
}
