//! Admission: whether an operation may take space, by the quota, the reserve and the free space of the host.
//!
//! ```text
//!  live + dead + buffered + new  ≤  quota − reserve        ordinary changes
//!  live + dead + buffered + new  ≤  quota − reserve / 2    data of blocks that `fallocate` reserved
//!  live + dead + buffered + new  ≤  quota                  deletes
//! ```
//!
//! `dead` counts dead blocks that the device may still hold. `buffered` counts the blocks that dirty pages, dirty
//! nodes and the node address table take when they are written to new addresses, before their old blocks are
//! released.

use crate::disk::address::Nid;
use crate::disk::nat::NAT_HEIGHT_MAX;
use crate::error::{Errno, Error, Result};
use crate::volume::state::{Volume, WriteState};

/// Free space that ordinary changes leave on the host, so that a checkpoint and some deletes always fit. Unit:
/// blocks.
pub(super) const HOST_RESERVE: u64 = 256;

/// Space usage of a volume. Unit: blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// Maximum that the volume may take.
    pub quota: u64,
    /// Part of the quota that only deletes may use.
    pub reserve: u64,
    /// Data, nodes, the node address table, and reservations of files.
    pub live: u64,
    /// Part of `live` that belongs to other branches.
    pub shared: u64,
    /// Dead blocks that a snapshot or a fork point refers to.
    pub held: u64,
    /// Dead blocks that are not in a discard log yet.
    pub dead: u64,
    /// Blocks in the discard log whose discard is not confirmed.
    pub pending: u64,
    /// Blocks that dirty memory takes when it is written.
    pub buffered: u64,
    /// Blocks of writes that a client has accepted and not sent yet.
    pub promised: u64,
    /// Blocks that other branches have claimed, beyond those that this one shares.
    pub others: u64,
    /// Number of inodes in use.
    pub inodes: u64,
    /// Set if blocks may have leaked. A trim finds them.
    pub needs_trim: bool,
}

impl Space {
    /// Number of blocks that ordinary changes can still take.
    pub fn available(&self) -> u64 {
        let room = self.quota.saturating_sub(self.reserve);
        room.saturating_sub(self.used() + self.promised + self.others)
    }

    pub(super) fn used(&self) -> u64 {
        self.live + self.held + self.dead + self.pending + self.buffered
    }
}

/// Purpose for which an operation takes space.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    Ordinary,
    /// Data of blocks that are reserved, thus counted: only the host may lack space.
    Reserved,
    /// Operations that release space, or that were admitted before.
    Privileged,
}

impl Volume {
    /// Returns the space usage of the volume.
    pub fn space(&self) -> Space {
        Space {
            quota: self.sb.quota_blocks,
            reserve: self.sb.reserve_blocks,
            live: self.live
                + self.nat.blocks
                + (self.checkpoint.overflow.end - self.checkpoint.overflow.start),
            held: self.snapshots.held_blocks,
            dead: self.dead.blocks() + self.fork_points.pending_blocks(),
            shared: self.fork_points.shared_blocks,
            pending: self.discard_log.blocks(),
            buffered: self.pages.dirty()
                + self.nodes.dirty_count()
                + self.nat.update_blocks_max()
                + self.prepared_blocks(),
            promised: self.promises.blocks() - self.promises.reserved,
            others: self
                .claims
                .others
                .saturating_sub(self.fork_points.shared_blocks),
            inodes: self.inodes,
            needs_trim: self.needs_trim,
        }
    }

    /// Admits an operation that will dirty at most `blocks` blocks. It frees memory and makes a checkpoint if the
    /// caches, the logs or the host require one. `privileged` operations release space and may use the reserve.
    ///
    /// # Errors
    /// ENOSPC if the space is not available even after a drain.
    pub(crate) fn admit(&mut self, blocks: u64, privileged: bool) -> Result<()> {
        self.admit_as(
            blocks,
            match privileged {
                true => Purpose::Privileged,
                false => Purpose::Ordinary,
            },
        )
    }

    /// Admits data of `pages` pages of a file, from page `first` on. What was `promised` is admitted in any case.
    ///
    /// # Errors
    /// ENOSPC if the space is not available even after a drain.
    pub(crate) fn admit_data(
        &mut self,
        ino: Nid,
        first: u64,
        pages: u64,
        promised: bool,
    ) -> Result<()> {
        let blocks = 2 * pages + pages / 300 + 8;
        let is_ample = || blocks <= self.space().available();
        let purpose = if promised {
            Purpose::Privileged
        } else if is_ample() || self.reserved_blocks(ino, first, first + pages)? < pages {
            Purpose::Ordinary
        } else {
            Purpose::Reserved
        };
        self.admit_as(blocks, purpose)
    }

    /// [Admits](Self::admit) an operation by its purpose.
    pub(crate) fn admit_as(&mut self, blocks: u64, purpose: Purpose) -> Result<()> {
        self.writable()?;
        self.shrink_caches();
        let heavy = self.pages.dirty() > self.options.dirty_pages_max
            || self.nodes.dirty_count() > self.options.dirty_nodes_max;
        if heavy
            || self.is_host_nearly_full()
            || self.logs.remaining() < self.buffered_blocks_max() + blocks
        {
            self.checkpoint()?;
        }
        self.admit_or_drain(blocks, purpose)
    }

    /// Admits the promise of a write that takes `blocks` blocks, of which `reserved` are reserved.
    ///
    /// # Errors
    /// ENOSPC if the space is not available even after a drain.
    pub(crate) fn admit_promise(&mut self, blocks: u64, reserved: u64) -> Result<()> {
        self.writable()?;
        let purpose = match reserved < blocks {
            true => Purpose::Ordinary,
            false => Purpose::Reserved,
        };
        self.admit_or_drain(blocks - reserved + 8, purpose)?;
        match self.preallocate_promises(blocks) {
            true => Ok(()),
            false => Err(Errno::HostFull.into()),
        }
    }

    fn admit_or_drain(&mut self, blocks: u64, purpose: Purpose) -> Result<()> {
        if self.try_admit(blocks, purpose)?.is_ok() {
            return Ok(());
        }
        // Dead blocks may take the space: release them and try again.
        let waiting = self.dead.blocks() + self.discard_log.blocks() + self.prepared_blocks();
        if waiting + self.pages.dirty() + self.nodes.dirty_count() > 0 {
            self.drain()?;
        }
        Ok(self.try_admit(blocks, purpose)??)
    }

    /// Returns whether dirty memory or the logs are so full that an operation may soon have to make a
    /// checkpoint itself.
    pub fn wants_checkpoint(&self) -> bool {
        self.nodes.dirty_count() > self.options.dirty_nodes_max / 2
            || self.logs.remaining() < self.options.window_blocks / 2
    }

    /// Checks whether `blocks` more blocks fit. The inner error distinguishes the quota from the host.
    fn try_admit(
        &mut self,
        blocks: u64,
        purpose: Purpose,
    ) -> Result<std::result::Result<(), Errno>> {
        let space = self.space();
        let (used, limit) = match purpose {
            Purpose::Privileged => (space.used(), space.quota),
            // Deletes need the other half.
            Purpose::Reserved => (space.used(), space.quota - space.reserve / 2),
            Purpose::Ordinary => (
                space.used() + space.promised,
                space.quota.saturating_sub(space.reserve),
            ),
        };
        if used + blocks > limit || !self.claim(blocks, limit, purpose != Purpose::Ordinary)? {
            return Ok(Err(Errno::NoSpace));
        }
        // The quota is a promise, the free space of the host a fact. Deletes are admitted in any case: they need
        // little, and that was reserved before.
        let kept = self.maintain_preallocation();
        if purpose == Purpose::Privileged {
            return Ok(Ok(()));
        }
        if !kept {
            return Ok(Err(Errno::HostFull));
        }
        // Other programs take space on the host too.
        let free = self
            .host_free()
            .map_err(|e| Error::io(e, "querying the free space of the host"))?;
        let kept = self.buffered_blocks_max() + self.promises.blocks() + HOST_RESERVE;
        // Promises count although they are preallocated, because not every host preallocates.
        let is_enough = |free| free >= blocks + kept;
        Ok(match free.is_none_or(is_enough) {
            true => Ok(()),
            false => Err(Errno::HostFull),
        })
    }

    pub(super) fn buffered_blocks_max(&self) -> u64 {
        self.pages.dirty()
            + self.nodes.dirty_count()
            + self.nat.update_blocks_max()
            + u64::from(NAT_HEIGHT_MAX)
            + 16
    }

    /// Returns whether an earlier failure made the volume refuse changes.
    pub fn is_broken(&self) -> bool {
        matches!(self.state, WriteState::Broken(_))
    }
}
