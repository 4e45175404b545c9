//! Who may use how much: the quota, the reserve, and what stands in the way of both.
//!
//! ```text
//!  live + dead + buffered + new  ≤  quota − reserve        ordinary changes
//!  live + dead + buffered + new  ≤  quota                  deletes
//! ```
//!
//! `dead` is what died and is not yet known to be off the device; `buffered` is what dirty pages, dirty nodes and the node address table will take
//! when they are written to new places, before their old places are given back.

use crate::disk::nat::NAT_HEIGHT_MAX;
use crate::error::{Errno, Error, Result};
use crate::volume::state::{Volume, WriteState};

/// Room that ordinary changes leave to the host, so that a checkpoint and some deletes always fit. Unit: blocks.
const HOST_RESERVE: u64 = 256;

/// How full a volume is. Unit: blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// What the volume may take.
    pub quota: u64,
    /// Part of it that only deletes may use.
    pub reserve: u64,
    /// Data, nodes, the node address table, and what is reserved for files.
    pub live: u64,
    /// Dead, but part of a snapshot.
    pub held: u64,
    /// Dead, not yet in a discard log.
    pub dead: u64,
    /// In the discard log, not yet confirmed.
    pub pending: u64,
    /// What dirty memory will take when it is written.
    pub buffered: u64,
    /// Inodes in use.
    pub inodes: u64,
    /// True if blocks may have leaked; `trim` finds them.
    pub needs_trim: bool,
}

impl Space {
    /// Blocks that ordinary changes can still take.
    pub fn available(&self) -> u64 {
        let used = self.live + self.held + self.dead + self.pending + self.buffered;
        self.quota.saturating_sub(self.reserve).saturating_sub(used)
    }
}

impl Volume {
    /// How full the volume is.
    pub fn space(&self) -> Space {
        Space {
            quota: self.sb.quota_blocks,
            reserve: self.sb.reserve_blocks,
            live: self.live
                + self.nat.blocks
                + (self.checkpoint.overflow.end - self.checkpoint.overflow.start),
            held: self.snapshots.held_blocks,
            dead: self.dead.blocks(),
            pending: self.discard_log.blocks(),
            buffered: self.pages.dirty()
                + self.nodes.dirty_count()
                + self.nat.update_blocks_max()
                + self.prepared_blocks(),
            inodes: self.inodes,
            needs_trim: self.needs_trim,
        }
    }

    /// Opens an operation that will dirty at most `blocks` blocks: makes room in memory, in the logs and on the device.
    /// `privileged` operations give space back and may use the reserve.
    pub(crate) fn admit(&mut self, blocks: u64, privileged: bool) -> Result<()> {
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
        if self.try_admit(blocks, privileged)?.is_ok() {
            return Ok(());
        }
        // Perhaps only the dead are in the way.
        let waiting = self.dead.blocks() + self.discard_log.blocks() + self.prepared_blocks();
        if waiting + self.pages.dirty() + self.nodes.dirty_count() > 0 {
            self.drain()?;
        }
        Ok(self.try_admit(blocks, privileged)??)
    }

    /// Whether so much waits in memory, or was appended, that an operation may soon have to make a checkpoint by itself.
    pub fn wants_checkpoint(&self) -> bool {
        self.nodes.dirty_count() > self.options.dirty_nodes_max / 2
            || self.logs.remaining() < self.options.window_blocks / 2
    }

    /// The inner result says what has no room for so many blocks: the quota or the host.
    fn try_admit(
        &mut self,
        blocks: u64,
        privileged: bool,
    ) -> Result<std::result::Result<(), Errno>> {
        let space = self.space();
        let used = space.live + space.held + space.dead + space.pending + space.buffered;
        let limit = if privileged {
            space.quota
        } else {
            space.quota - space.reserve
        };
        if used + blocks > limit {
            return Ok(Err(Errno::NoSpace));
        }
        // The quota is a promise of the host's owner; its room is a fact. Deletes are let through in any case: what
        // they need is small, and was reserved before.
        let kept = self.maintain_preallocation();
        if privileged {
            return Ok(Ok(()));
        }
        if !kept {
            return Ok(Err(Errno::HostFull));
        }
        // Others use the host too.
        let room = self
            .host_free()
            .map_err(|e| Error::io(e, "asking the host for its free space"))?;
        let is_enough = |room| room >= blocks + self.buffered_blocks_max() + HOST_RESERVE;
        Ok(match room.is_none_or(is_enough) {
            true => Ok(()),
            false => Err(Errno::HostFull),
        })
    }

    fn buffered_blocks_max(&self) -> u64 {
        self.pages.dirty()
            + self.nodes.dirty_count()
            + self.nat.update_blocks_max()
            + u64::from(NAT_HEIGHT_MAX)
            + 16
    }

    /// True if an earlier failure made the volume refuse changes.
    pub fn is_broken(&self) -> bool {
        matches!(self.state, WriteState::Broken(_))
    }
}
