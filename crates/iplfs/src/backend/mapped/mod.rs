//! Block map: gives a medium of ordinary size the address space of a volume.
//!
//! ```text
//!  address ──► map in memory ──► physical block          superblocks and packs: a fixed place, overwritten
//!                  │ changes
//!                  └──► journal, one batch per flush ──► table of owners, when the journal is full
//! ```
//!
//! Every block is mapped on its own, so a discard frees exactly its blocks and nothing is ever moved. A power loss
//! keeps the contract of [`BlockDevice`]:
//!
//! * A flush writes the changes since the last one as a batch. Data and batch share one flush of the medium.
//! * Only the last batch may be incomplete. It has the checksum of each block that it maps. Opening drops blocks that
//!   do not match, so they read as zeros, like blocks that were never written.
//! * A freed block is used again only after its release is durable.
//!
//! The structures are described in docs/reference/volume-format.md.

mod allocator;
mod block_map;
mod durable_map;
mod journal;
mod layout;
mod load;
mod table;

use crate::device::{BlockDevice, blocks_in};
use crate::disk::address::{BLOCK_SIZE, Block, BlockAddr, Geometry};
use crate::finding::Finding;
use allocator::Allocator;
use block_map::BlockMap;
use durable_map::{DurableMap, Repair};
use journal::PendingChanges;
use layout::Layout;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use table::Page;

/// Blocks that are written or released in one step. It bounds the changes that a batch may exceed its limit by.
const STEP_BLOCKS: u64 = 256;
/// Time that closing the device may take to pass free blocks to the medium.
const CLOSE_TIME: Duration = Duration::from_secs(5);

/// Device that maps the addresses of a volume to the blocks of a medium.
pub struct MappedDevice {
    medium: Arc<dyn BlockDevice>,
    layout: Layout,
    state: Mutex<MapState>,
    /// Held during a flush, so that batches follow each other.
    durable: Mutex<DurableMap>,
    /// True after the lock was given up: the medium may belong to another process. Held while the medium discards free blocks.
    closed: Mutex<bool>,
}

struct MapState {
    map: BlockMap,
    space: Allocator,
    pending: PendingChanges,
}

impl MappedDevice {
    /// Creates an empty map on a medium of `blocks` blocks. What is on it is lost.
    pub fn create(
        medium: Arc<dyn BlockDevice>,
        blocks: u64,
        uuid: [u8; 16],
        geometry: &Geometry,
    ) -> io::Result<Self> {
        let layout = Layout::new(uuid, blocks, geometry).ok_or_else(|| {
            let what = format!("{blocks} blocks are too few for a block map");
            io::Error::new(io::ErrorKind::InvalidInput, what)
        })?;
        let zeros = vec![0; 256 * BLOCK_SIZE];
        for at in layout.headers() {
            medium.write(BlockAddr(at), &zeros[..BLOCK_SIZE])?;
        }
        medium.flush()?;
        for part in layout.cleared() {
            let mut at = part.start;
            while at < part.end {
                let blocks = (part.end - at).min(256);
                medium.write(BlockAddr(at), &zeros[..blocks as usize * BLOCK_SIZE])?;
                at += blocks;
            }
        }
        for index in 0..layout.table_blocks() {
            let page = Page::empty().encode(index);
            for copy in 0..2 {
                medium.write(BlockAddr(layout.table(copy) + index), &page)?;
            }
        }
        // The blocks of an earlier use. A medium that cannot discard keeps them until they are overwritten.
        let _ = medium.discard(layout.data());
        medium.flush()?;
        for at in layout.headers() {
            medium.write(BlockAddr(at), &layout.encode())?;
        }
        medium.flush()?;
        Self::load(medium, layout)
    }

    /// Opens the map on a medium of `blocks` blocks. `None` if there is none.
    pub fn open(medium: Arc<dyn BlockDevice>, blocks: u64) -> io::Result<Option<Self>> {
        let read = |at: u64| -> io::Result<Option<Layout>> {
            let mut block: Block = [0; BLOCK_SIZE];
            medium.read(BlockAddr(at), &mut block)?;
            Ok(Layout::decode(&block))
        };
        let mut found = None;
        let mut error = None;
        for at in [Some(0), Some(1), blocks.checked_sub(1)] {
            match at.map_or(Ok(None), read) {
                Ok(layout) => found = found.or(layout),
                Err(e) => error = Some(e),
            }
        }
        let Some(layout) = found else {
            return error.map_or(Ok(None), Err);
        };
        let device = Self::load(medium.clone(), layout)?;
        let mut durable = device.lock_durable();
        for at in layout.headers() {
            let mut block: Block = [0; BLOCK_SIZE];
            if medium.read(BlockAddr(at), &mut block).is_err() || block != layout.encode() {
                let place = format_args!("header of the block map at block {at}");
                let finding = Finding::new(place, "is damaged or missing");
                durable.findings.push(finding);
                durable.repairs.push(Repair {
                    physical: at,
                    bytes: layout.encode().to_vec(),
                });
            }
        }
        drop(durable);
        Ok(Some(device))
    }

    fn load(medium: Arc<dyn BlockDevice>, layout: Layout) -> io::Result<Self> {
        let loaded = load::load(medium.clone(), layout)?;
        Ok(Self {
            medium,
            layout,
            state: Mutex::new(MapState {
                map: loaded.map,
                space: loaded.space,
                pending: loaded.pending,
            }),
            durable: Mutex::new(loaded.durable),
            closed: Mutex::default(),
        })
    }

    /// Number of blocks that a map on a medium of `blocks` blocks can map at the same time. 0 if it is too small.
    pub fn capacity_on(blocks: u64, geometry: &Geometry) -> u64 {
        Layout::new([0; 16], blocks, geometry).map_or(0, |layout| {
            let data = layout.data();
            data.end - data.start
        })
    }

    fn lock(&self) -> MutexGuard<'_, MapState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_durable(&self) -> MutexGuard<'_, DurableMap> {
        self.durable.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_closed(&self) -> MutexGuard<'_, bool> {
        self.closed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Splits a range where the placement changes, and into steps.
    fn steps(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> + use<> {
        let boundaries = self.layout.boundaries();
        let mut at = range.start;
        std::iter::from_fn(move || {
            let ends = boundaries.into_iter().filter(|end| *end > at);
            let end = ends.fold(range.end.min(at.saturating_add(STEP_BLOCKS)), u64::min);
            let step = at..end;
            at = end;
            (step.start < step.end).then_some(step)
        })
    }

    /// Flushes if the pending changes fill half of the journal.
    fn bound_pending(&self) -> io::Result<()> {
        let blocks = self.lock().pending.batch_blocks();
        if blocks > self.layout.journal_blocks() / 2 {
            self.flush()?;
        }
        Ok(())
    }

    fn write_mapped(&self, addr: u64, data: &[u8]) -> io::Result<()> {
        let blocks = blocks_in(data);
        let area = self.layout.area(addr);
        let allocate = || self.lock().space.allocate(area, blocks);
        let runs = allocate().or_else(|| {
            // Blocks may wait for the flush after their release. If it fails, so does the next one.
            let _ = self.flush();
            allocate()
        });
        let runs = runs.ok_or(io::ErrorKind::StorageFull)?;
        let mut rest = data;
        for run in &runs {
            let part;
            (part, rest) = rest.split_at((run.end - run.start) as usize * BLOCK_SIZE);
            if let Err(e) = self.medium.write(BlockAddr(run.start), part) {
                let mut state = self.lock();
                runs.iter().for_each(|run| state.space.release(run.clone()));
                return Err(e);
            }
        }
        let mut state = self.lock();
        let state = &mut *state;
        // Volumes write a block once. After a second write and a power loss the block may read as zeros.
        for old in state.map.remove(addr..addr + blocks) {
            state.pending.free(old);
        }
        let (mut at, mut rest) = (addr, data);
        for run in runs {
            let part;
            (part, rest) = rest.split_at((run.end - run.start) as usize * BLOCK_SIZE);
            state.map.insert(at, run.start, run.end - run.start);
            state.pending.map(at, run.start, part);
            at += run.end - run.start;
        }
        Ok(())
    }

    /// Passes chunks that became empty to the medium. Single blocks are not worth a command each while others wait. A medium that
    /// cannot discard ignores them.
    fn discard_emptied(&self) {
        let closed = self.lock_closed();
        if *closed {
            return;
        }
        let next = || self.lock().space.take_emptied();
        while let Some(chunk) = next() {
            let _ = self.medium.discard(chunk.clone());
            self.lock().space.put_back(chunk);
        }
    }

    /// Passes the runs that became free in one chunk to the medium, also if a part of it is used. Returns false if there are no
    /// more, or the medium cannot discard.
    fn discard_freed(&self) -> bool {
        let closed = self.lock_closed();
        if *closed {
            return false;
        }
        let Some(runs) = self.lock().space.take_freed() else {
            return false;
        };
        let mut discards = true;
        for run in runs {
            discards = discards && self.medium.discard(run.clone()).is_ok();
            self.lock().space.put_back(run);
        }
        discards
    }
}

impl Drop for MappedDevice {
    fn drop(&mut self) {
        let start = Instant::now();
        while start.elapsed() < CLOSE_TIME && self.discard_freed() {}
    }
}

impl BlockDevice for MappedDevice {
    fn read(&self, addr: BlockAddr, buf: &mut [u8]) -> io::Result<()> {
        let mut rest = buf;
        for step in self.steps(addr.0..addr.0 + blocks_in(rest)) {
            let (mut part, remainder) =
                rest.split_at_mut((step.end - step.start) as usize * BLOCK_SIZE);
            rest = remainder;
            if let Some(physical) = self.layout.fixed_place(step.start) {
                self.medium.read(BlockAddr(physical), part)?;
                continue;
            }
            let pieces = self.lock().map.resolve(step);
            for piece in pieces {
                let bytes;
                (bytes, part) = part.split_at_mut(piece.blocks as usize * BLOCK_SIZE);
                match piece.physical {
                    Some(physical) => self.medium.read(BlockAddr(physical), bytes)?,
                    None => bytes.fill(0),
                }
            }
        }
        Ok(())
    }

    fn read_uncached(&self, addr: BlockAddr, buf: &mut [u8]) -> io::Result<()> {
        match self.layout.fixed_place(addr.0) {
            Some(physical) if buf.len() == BLOCK_SIZE => {
                self.medium.read_uncached(BlockAddr(physical), buf)
            }
            // This device alone moves what its map places.
            _ => self.read(addr, buf),
        }
    }

    fn write(&self, addr: BlockAddr, data: &[u8]) -> io::Result<()> {
        let mut rest = data;
        for step in self.steps(addr.0..addr.0 + blocks_in(data)) {
            let part;
            (part, rest) = rest.split_at((step.end - step.start) as usize * BLOCK_SIZE);
            match self.layout.fixed_place(step.start) {
                Some(physical) => self.medium.write(BlockAddr(physical), part)?,
                None => {
                    self.write_mapped(step.start, part)?;
                    self.bound_pending()?;
                }
            }
        }
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        let mut durable = self.lock_durable();
        if *self.lock_closed() {
            return Err(io::Error::other("the device is closed"));
        }
        let pending = std::mem::take(&mut self.lock().pending);
        durable.commit(&pending)?;
        let mut state = self.lock();
        for run in pending.freed {
            state.space.release(run);
        }
        Ok(())
    }

    fn discard(&self, blocks: Range<u64>) -> io::Result<()> {
        self.discard_emptied();
        let runs = self.lock().map.allocated(blocks);
        // Superblocks and packs keep their place.
        for run in runs {
            for step in self.steps(run) {
                let mut state = self.lock();
                for freed in state.map.remove(step) {
                    state.pending.free(freed);
                }
                drop(state);
                self.bound_pending()?;
            }
        }
        Ok(())
    }

    fn allocated(&self, blocks: Range<u64>) -> io::Result<Vec<Range<u64>>> {
        let [fixed, spare, spare_end] = self.layout.boundaries();
        let mapped = self.lock().map.allocated(blocks.clone());
        let cut = |run: Range<u64>| run.start.max(blocks.start)..run.end.min(blocks.end);
        let mut runs = vec![cut(0..fixed)];
        let split = mapped.partition_point(|run| run.start < spare);
        runs.extend_from_slice(&mapped[..split]);
        runs.push(cut(spare..spare_end));
        runs.extend_from_slice(&mapped[split..]);
        runs.retain(|run| run.start < run.end);
        Ok(runs)
    }

    fn knows_allocated(&self) -> bool {
        true
    }

    fn release_free_space(&self) -> bool {
        self.discard_freed()
    }

    fn free_blocks(&self) -> io::Result<Option<u64>> {
        let state = self.lock();
        let waiting = state.pending.freed.iter();
        let waiting: u64 = waiting.map(|run| run.end - run.start).sum();
        Ok(Some(state.space.free() + waiting))
    }

    fn claim(&self, exclusive: bool) -> io::Result<()> {
        self.medium.claim(exclusive)
    }

    fn unlock(&self) {
        let _durable = self.lock_durable();
        *self.lock_closed() = true;
        self.medium.unlock();
    }

    fn damaged_files(&self) -> Vec<Finding> {
        self.lock_durable().findings.clone()
    }

    fn rewrite_damaged_files(&self) -> io::Result<()> {
        self.lock_durable().mend()
    }
}
