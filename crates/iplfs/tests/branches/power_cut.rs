//! Device that loses power.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex};
use tuff_iplfs::{BlockAddr, BlockDevice, BranchDevice};
use tuff_testkit::Rng;

/// Device that fails from some write on, and loses power then: what was not flushed is written, torn or lost.
pub(crate) struct PowerCut {
    dev: Arc<dyn BlockDevice>,
    pub(crate) writes_left: AtomicU64,
    unflushed: Mutex<Unflushed>,
}

#[derive(Default)]
struct Unflushed {
    blocks: BTreeMap<u64, Vec<u8>>,
    discards: Vec<Range<u64>>,
}

impl PowerCut {
    pub(crate) fn new(dev: Arc<dyn BlockDevice>, writes: u64) -> Self {
        Self {
            dev,
            writes_left: AtomicU64::new(writes),
            unflushed: Mutex::default(),
        }
    }

    fn step(&self) -> io::Result<()> {
        let left = self.writes_left.load(SeqCst);
        if left == 0 {
            return Err(io::Error::other("no power"));
        }
        self.writes_left.store(left - 1, SeqCst);
        Ok(())
    }

    /// Decides what the medium has of each block that was not flushed.
    pub(crate) fn cut(&self, rng: &mut Rng) {
        let unflushed = std::mem::take(&mut *self.unflushed.lock().unwrap());
        for (addr, bytes) in unflushed.blocks {
            let addr = BlockAddr(addr);
            let mut block = vec![0; 4096];
            self.dev.read(addr, &mut block).unwrap();
            let kind = rng.below(4);
            for (sector, new) in block.chunks_mut(512).zip(bytes.chunks(512)) {
                if kind == 0 || kind == 1 && rng.below(2) == 0 {
                    sector.copy_from_slice(new);
                }
            }
            if kind < 2 {
                self.dev.write(addr, &block).unwrap();
            }
        }
        for run in unflushed.discards {
            if rng.below(2) == 0 {
                self.dev.discard(run).unwrap();
            }
        }
    }
}

impl BlockDevice for PowerCut {
    fn read(&self, addr: BlockAddr, buf: &mut [u8]) -> io::Result<()> {
        self.dev.read(addr, buf)?;
        let unflushed = self.unflushed.lock().unwrap();
        for (addr, block) in (addr.0..).zip(buf.chunks_mut(4096)) {
            if let Some(bytes) = unflushed.blocks.get(&addr) {
                block.copy_from_slice(bytes);
            }
        }
        Ok(())
    }
    fn write(&self, addr: BlockAddr, data: &[u8]) -> io::Result<()> {
        self.step()?;
        let mut unflushed = self.unflushed.lock().unwrap();
        for (addr, block) in (addr.0..).zip(data.chunks(4096)) {
            unflushed.blocks.insert(addr, block.to_vec());
        }
        Ok(())
    }
    fn flush(&self) -> io::Result<()> {
        self.step()?;
        let unflushed = std::mem::take(&mut *self.unflushed.lock().unwrap());
        for (addr, block) in unflushed.blocks {
            self.dev.write(BlockAddr(addr), &block)?;
        }
        for run in unflushed.discards {
            self.dev.discard(run)?;
        }
        self.dev.flush()
    }
    fn discard(&self, blocks: Range<u64>) -> io::Result<()> {
        self.step()?;
        self.unflushed.lock().unwrap().discards.push(blocks);
        Ok(())
    }
    fn allocated(&self, blocks: Range<u64>) -> io::Result<Vec<Range<u64>>> {
        let runs = self.dev.allocated(blocks.clone())?;
        let mut all: BTreeSet<u64> = runs.into_iter().flatten().collect();
        if blocks.start < blocks.end {
            let unflushed = self.unflushed.lock().unwrap();
            all.extend(unflushed.blocks.range(blocks).map(|(addr, _)| *addr));
        }
        Ok(all.into_iter().map(|addr| addr..addr + 1).collect())
    }
    fn knows_allocated(&self) -> bool {
        true
    }
    fn zone_blocks(&self) -> Option<u64> {
        self.dev.zone_blocks()
    }
    fn release_zone(&self, zone: u64) -> io::Result<()> {
        self.step()?;
        self.dev.release_zone(zone)
    }
    fn zones(&self, zones: Range<u64>) -> io::Result<Vec<u64>> {
        self.dev.zones(zones)
    }
    fn branch(&self) -> Option<&dyn BranchDevice> {
        self.dev.branch()
    }
}
