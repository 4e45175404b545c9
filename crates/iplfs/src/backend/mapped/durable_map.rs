//! Durable form of the map: a journal of recent changes over a table.
//!
//! ```text
//!  batch, twice ─► flush ─► … ─► journal full ─► pages, first copies ─► flush ─► second copies ─► flush ─► journal restarts
//! ```
//!
//! The journal is overwritten only after both copies of every page contain its changes. A batch is written only after
//! the one before it is durable, so at most the last batch of a journal is incomplete.

use super::journal::{Change, PendingChanges};
use super::layout::Layout;
use super::table::{PAGE_ENTRIES, Page};
use crate::device::{BlockDevice, blocks_in};
use crate::disk::address::{BLOCK_SIZE, Block, BlockAddr};
use crate::finding::Finding;
use std::io;
use std::sync::Arc;

/// Blocks to be rewritten from their other copy.
pub(super) struct Repair {
    pub(super) physical: u64,
    pub(super) bytes: Vec<u8>,
}

/// Journal and table on the medium.
pub(super) struct DurableMap {
    pub(super) medium: Arc<dyn BlockDevice>,
    pub(super) layout: Layout,
    /// Position of the next batch in the journal. Unit: blocks.
    pub(super) position: u64,
    /// Number of the next batch.
    pub(super) next_seq: u64,
    /// Changes in the journal.
    pub(super) journaled: Vec<Change>,
    /// Copies that are damaged or old.
    pub(super) repairs: Vec<Repair>,
    /// Copies that no crash explains.
    pub(super) findings: Vec<Finding>,
    /// A write or flush failed: the state on the medium is unknown.
    pub(super) failed: bool,
}

impl DurableMap {
    /// Makes changes durable, with all data written before.
    pub(super) fn commit(&mut self, pending: &PendingChanges) -> io::Result<()> {
        if self.failed {
            return Err(io::Error::other("an earlier flush failed"));
        }
        let result = self.try_commit(pending);
        self.failed = result.is_err();
        result
    }

    fn try_commit(&mut self, pending: &PendingChanges) -> io::Result<()> {
        self.mend()?;
        if pending.changes.is_empty() {
            return self.medium.flush();
        }
        if self.position + pending.batch_blocks() > self.layout.journal_blocks() {
            self.write_table()?;
        }
        if pending.batch_blocks() > self.layout.journal_blocks() {
            return Err(io::Error::other("a batch exceeds the journal"));
        }
        let batch = pending.encode(self.layout.id(), self.next_seq);
        for copy in 0..2 {
            self.write(self.layout.journal(copy) + self.position, &batch)?;
        }
        self.medium.flush()?;
        self.position += blocks_in(&batch);
        self.next_seq += 1;
        self.journaled.extend(&pending.changes);
        Ok(())
    }

    fn write(&self, physical: u64, bytes: &[u8]) -> io::Result<()> {
        self.medium.write(BlockAddr(physical), bytes)
    }

    /// Rewrites damaged and old copies.
    pub(super) fn mend(&mut self) -> io::Result<()> {
        if self.repairs.is_empty() {
            return Ok(());
        }
        for repair in &self.repairs {
            self.write(repair.physical, &repair.bytes)?;
        }
        self.medium.flush()?;
        self.repairs.clear();
        self.findings.clear();
        Ok(())
    }

    /// Writes the pages that the journal changed, and restarts the journal.
    fn write_table(&mut self) -> io::Result<()> {
        let mut changes = Vec::with_capacity(self.journaled.len());
        for change in &self.journaled {
            changes.extend(split_at_pages(*change, self.layout.data().start));
        }
        // Stable: changes of a page stay in their order.
        changes.sort_by_key(|(index, ..)| *index);
        for group in changes.chunk_by(|(a, ..), (b, ..)| a == b) {
            let index = group[0].0;
            let mut page = self.read_page(index)?;
            for (_, first, change) in group {
                apply(*change, &mut page.owners[*first..]);
            }
            page.seq = self.next_seq - 1;
            self.write(self.layout.table(0) + index, &page.encode(index))?;
        }
        self.medium.flush()?;
        let mut block = [0; BLOCK_SIZE];
        for group in changes.chunk_by(|(a, ..), (b, ..)| a == b) {
            let index = group[0].0;
            let first = BlockAddr(self.layout.table(0) + index);
            self.medium.read(first, &mut block)?;
            self.write(self.layout.table(1) + index, &block)?;
        }
        self.medium.flush()?;
        self.position = 0;
        self.journaled.clear();
        Ok(())
    }

    /// Reads the newest copy of a page.
    fn read_page(&self, index: u64) -> io::Result<Page> {
        let read = |copy| -> io::Result<Option<Page>> {
            let mut block: Block = [0; BLOCK_SIZE];
            let physical = self.layout.table(copy) + index;
            self.medium.read(BlockAddr(physical), &mut block)?;
            Ok(Page::decode(&block, index))
        };
        let (first, second) = (read(0)?, read(1)?);
        let newest = first.into_iter().chain(second).max_by_key(|page| page.seq);
        newest.ok_or_else(|| {
            let what = format!("both copies of page {index} of the block map are damaged");
            io::Error::new(io::ErrorKind::InvalidData, what)
        })
    }
}

/// Splits a change at the ends of pages: page, entry in the page, change.
pub(super) fn split_at_pages(
    change: Change,
    data_start: u64,
) -> impl Iterator<Item = (u64, usize, Change)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done >= change.blocks {
            return None;
        }
        let index = change.physical - data_start + done;
        let (page, entry) = (index / PAGE_ENTRIES, index % PAGE_ENTRIES);
        let blocks = (change.blocks - done).min(PAGE_ENTRIES - entry);
        let part = Change {
            physical: change.physical + done,
            blocks,
            addr: match change.addr {
                0 => 0,
                addr => addr + done,
            },
        };
        done += blocks;
        Some((page, entry as usize, part))
    })
}

/// Sets the owners of the blocks of a change.
pub(super) fn apply(change: Change, owners: &mut [u64]) {
    let addrs = change.addr..;
    for (owner, addr) in owners[..change.blocks as usize].iter_mut().zip(addrs) {
        *owner = if change.addr == 0 { 0 } else { addr };
    }
}
