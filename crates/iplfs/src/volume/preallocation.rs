//! Room on the host ahead of the heads: a checkpoint, and so a delete, needs none of a host that is full.
//!
//! Space kept elsewhere, to be given up when it is needed, may be gone before it is taken again: others write to the host too. What is reserved
//! where the next blocks go stays ours. The device holds none of it until it is written; what a head leaves behind unwritten is given up.

use crate::device::is_full;
use crate::disk::address::Log;
use crate::error::{Error, Result};
use crate::volume::state::Volume;
use std::io;

/// Blocks reserved ahead of each head: what dirty memory takes while little is dirty, and a checkpoint with some deletes. In the order of the logs.
const PREALLOCATED: [u64; 7] = [128, 256, 768, 0, 64, 192, 64];
/// What of it stays while the volume is not mounted, for the first deletes of a mount: 1 MiB.
const PREALLOCATED_UNMOUNTED: [u64; 7] = [64, 64, 0, 0, 32, 64, 32];
/// A host with less is asked for room before an address is used up, and little is left dirty: 16 MiB. Unit: blocks.
const LOW_SPACE: u64 = 4096;
/// Dirty pages and nodes that such a host is to take at once.
const LOW_SPACE_DIRTY_MAX: u64 = 64;

impl Volume {
    /// Returns the free blocks of the host, `None` if the device has no such limit.
    pub(crate) fn host_free(&self) -> io::Result<Option<u64>> {
        self.free_space.of(&*self.dev)
    }

    /// Reserves room where a head has used a quarter of it. True if all of it is there, or the device has no such thing.
    pub(crate) fn maintain_preallocation(&mut self) -> bool {
        Log::ALL.into_iter().all(|log| {
            let (head, want) = (self.logs.marks[log.index()].head, PREALLOCATED[log.index()]);
            self.logs.preallocated[log.index()] >= head + want - want / 4
                || self.reserve(log, want).is_ok()
        })
    }

    fn reserve(&mut self, log: Log, blocks: u64) -> io::Result<()> {
        let head = self.logs.marks[log.index()].head;
        let end = (head + blocks).min(self.sb.geometry.area_blocks());
        let start = head.max(self.logs.preallocated[log.index()]);
        if start < end {
            match self
                .dev
                .preallocate(self.sb.geometry.range(log, start..end))
            {
                // A write will say what else is wrong.
                Err(e) if is_full(&e) => return Err(e),
                _ => self.logs.preallocated[log.index()] = end,
            }
        }
        Ok(())
    }

    /// Asks a host that is nearly full for the room of the next `blocks` of a log, so that no address is used up for nothing: who tries again and again would
    /// come to the limit of the log.
    pub(crate) fn preallocate_if_low(&mut self, log: Log, blocks: u64) -> Result<()> {
        let asking = |e| {
            Error::io(
                e,
                format_args!("reserving {blocks} blocks of the {log:?} log"),
            )
        };
        let head = self.logs.marks[log.index()].head;
        if head + blocks <= self.logs.preallocated[log.index()] {
            return Ok(());
        }
        match self.host_free() {
            Ok(Some(free)) if free < blocks + LOW_SPACE => {
                self.reserve(log, blocks).map_err(asking)
            }
            _ => Ok(()),
        }
    }

    /// True if the host has so little room that a checkpoint should not wait.
    pub(crate) fn is_host_nearly_full(&self) -> bool {
        self.pages.dirty() + self.nodes.dirty_count() > LOW_SPACE_DIRTY_MAX
            && self.host_free().is_ok_and(|free| {
                free.is_some_and(|free| free < self.nodes.dirty_count() * 2 + LOW_SPACE)
            })
    }

    /// Gives up what only a volume in use needs.
    pub(crate) fn shrink_preallocation(&mut self) {
        for log in Log::ALL {
            let end = self.logs.marks[log.index()].head + PREALLOCATED_UNMOUNTED[log.index()];
            let room = self.logs.preallocated[log.index()];
            if end < room {
                // What stays is used by the next mount.
                let _ = self
                    .dev
                    .release_preallocated(self.sb.geometry.range(log, end..room));
            }
        }
    }

    /// Gives up what was reserved between the marks of the last checkpoint and the heads, and takes it again ahead of them.
    pub(crate) fn move_preallocation(&mut self) {
        for log in Log::ALL {
            let m = self.logs.marks[log.index()];
            if m.scan < m.head {
                // What stays goes with its zone.
                let _ = self
                    .dev
                    .release_preallocated(self.sb.geometry.range(log, m.scan..m.head));
            }
        }
        self.maintain_preallocation();
    }
}
