//! Promises: space of writes that a client has accepted and not sent yet.
//!
//! A mount lets the kernel collect written pages. While space is short it asks before each `write`, and the volume
//! promises the space. What is promised is used for nothing else until the pages arrive:
//!
//! ```text
//!  promise ─► counted as used, charged to the owners ─► write_back: taken by the pages that arrive
//!                                                   └─► settle: the rest is released once nothing is under way
//! ```
//!
//! Pages that are written several times before they arrive leave a rest.

use crate::disk::address::{BLOCK_SIZE, Nid};
use crate::disk::inode::Time;
use crate::error::{Errno, Error, Result};
use crate::quota::Owners;
use crate::volume::promise_records::Promise;
use crate::volume::state::Volume;

/// Space below which a mount asks before each `write`: the longest call, and the pages that the kernel collects for one
/// filesystem. Unit: blocks.
pub(crate) const SHORT: u64 = CALL_MAX_BLOCKS + COLLECTED_BLOCKS;
/// Longest `write`: 2 GiB.
const CALL_MAX_BLOCKS: u64 = (2 << 30) / BLOCK_SIZE as u64;
/// Pages that the kernel collects for one FUSE filesystem, 1 % of its limit of dirty pages: with 128 GiB of memory 256
/// MiB.
const COLLECTED_BLOCKS: u64 = (256 << 20) / BLOCK_SIZE as u64;

/// Pages that arrive are written in steps of this length: while a step is written, it needs twice its blocks. Unit:
/// bytes.
const WRITE_BACK_STEP: usize = 128 << 10;

/// Blocks of data and nodes that pages take.
fn cost(pages: u64) -> u64 {
    pages + pages / 250
}

impl Volume {
    /// Returns whether so little space is left, or so little of some quota, that a client has to
    /// [ask](Self::promise) before it accepts data. `was` is the last answer: a little more space is needed to
    /// change it back.
    pub fn is_short(&mut self, was: bool) -> bool {
        let enough = if was { SHORT + SHORT / 4 } else { SHORT };
        let host = self.host_free().ok().flatten().unwrap_or(u64::MAX);
        let least = self.space().available().min(host);
        // Other branches must not take the space of data that this one accepts.
        least.min(self.quotas.least_room()) < enough || !self.claim_ahead(enough)
    }

    /// Keeps space for what a client has accepted without asking, until
    /// [`settle_unasked`](Self::settle_unasked).
    pub fn keep_for_unasked(&mut self) {
        self.promises.unasked = COLLECTED_BLOCKS;
    }

    /// Promises the space of a write of `len` bytes, at `offset` if that is known.
    ///
    /// # Errors
    /// ENOSPC or EDQUOT if the space is not available.
    pub fn promise(&mut self, ino: Nid, len: u64, offset: Option<u64>) -> Result<()> {
        let owners = Owners::from_inode(self.inode(ino)?);
        let size = BLOCK_SIZE as u64;
        let (pages, fill, reserved) = match offset {
            Some(offset) => {
                let end = offset.checked_add(len).ok_or(Errno::FileTooBig)?;
                let (first, end) = (offset / size, end.div_ceil(size));
                let fill = self.blocks_to_fill(ino, first, end)?;
                (end - first, fill, self.reserved_blocks(ino, first, end)?)
            }
            // It may begin inside a page.
            None => (len.div_ceil(size) + 1, len.div_ceil(size) + 1, 0),
        };
        // The nodes of a range that is reserved exist.
        let reserved = match reserved == pages {
            true => cost(pages),
            false => reserved,
        };
        self.quotas.check(owners, fill, 0)?;
        self.admit_promise(cost(pages), reserved)?;
        let promise = self.promises.inodes.entry(ino).or_insert(Promise {
            owners,
            old: 0,
            new: 0,
            charged: 0,
            reserved: 0,
        });
        promise.new += cost(pages);
        promise.charged += fill;
        promise.reserved += reserved;
        self.promises.blocks += cost(pages);
        self.promises.reserved += reserved;
        self.quotas.charge(promise.owners, as_change(fill), 0);
        Ok(())
    }

    /// Writes pages that a client accepted before, as [`write`](Self::write). A promise is kept even if it takes the
    /// reserve of deletes.
    pub fn write_back(&mut self, ino: Nid, offset: u64, data: &[u8], now: Time) -> Result<usize> {
        let mut done = 0;
        for step in data.chunks(WRITE_BACK_STEP) {
            let blocks = cost((step.len() as u64).div_ceil(BLOCK_SIZE as u64));
            let taken = self.take_promise(ino, blocks);
            let place = offset.saturating_add(done as u64);
            // Pages of a mapping were not promised.
            match self.write_as(ino, (place, step), now, 2 * taken >= blocks) {
                Ok(n) => done += n,
                Err(Error::Posix(Errno::NoSpace | Errno::HostFull)) if done > 0 => break,
                Err(e) => return Err(e),
            }
        }
        Ok(done)
    }

    /// Returns whether space is kept for promises, or for what was accepted without asking.
    pub fn has_promises(&self) -> bool {
        self.promises.blocks() > 0
    }

    /// Inodes with promises.
    pub fn promised(&self) -> Vec<Nid> {
        self.promises.inodes.keys().copied().collect()
    }

    /// Begins to settle the promises of an inode: those so far are released by
    /// [`settle_promises`](Self::settle_promises), later ones are not.
    pub fn begin_to_settle(&mut self, ino: Nid) {
        if let Some(promise) = self.promises.inodes.get_mut(&ino) {
            promise.old += std::mem::take(&mut promise.new);
        }
    }

    /// Releases the promises of an inode up to [`begin_to_settle`](Self::begin_to_settle), after its pages have
    /// arrived.
    pub fn settle_promises(&mut self, ino: Nid) {
        if let Some(promise) = self.promises.inodes.get(&ino) {
            let old = promise.old;
            self.take_promise(ino, old);
        }
    }

    /// Everything has arrived that a client accepted without asking.
    pub fn settle_unasked(&mut self) {
        self.promises.unasked = 0;
    }

    /// Releases at most `blocks` of the promises of an inode. Returns the number released.
    fn take_promise(&mut self, ino: Nid, blocks: u64) -> u64 {
        let Some(promise) = self.promises.inodes.get_mut(&ino) else {
            return 0;
        };
        let from_old = blocks.min(promise.old);
        let from_new = (blocks - from_old).min(promise.new);
        promise.old -= from_old;
        promise.new -= from_new;
        let taken = from_old + from_new;
        self.promises.blocks -= taken;
        // The rest counts rather too much than too little.
        let reserved = promise.reserved.min(taken);
        promise.reserved -= reserved;
        self.promises.reserved -= reserved;
        let charged = promise.charged.min(promise.old + promise.new);
        let released = promise.charged - charged;
        promise.charged = charged;
        self.quotas.charge(promise.owners, -as_change(released), 0);
        if promise.old + promise.new == 0 {
            self.promises.inodes.remove(&ino);
        }
        taken
    }

    /// Charges all promises, after the usage was counted from the inodes.
    pub(crate) fn charge_promises(&mut self) {
        for promise in self.promises.inodes.values() {
            self.quotas
                .charge(promise.owners, as_change(promise.charged), 0);
        }
    }
}

/// Blocks as a change of a count.
fn as_change(blocks: u64) -> i64 {
    i64::try_from(blocks).unwrap_or(i64::MAX)
}
