//! Room on the host ahead of the heads: a checkpoint, and so a delete, needs none of a host that is full.
//!
//! Space kept elsewhere, to be given up when it is needed, may be gone before it is taken again: others write to the host too. What is reserved
//! where the next blocks go stays ours. The device holds none of it until it is written; what a head leaves behind unwritten is given up.

use crate::device::is_full;
use crate::disk::address::Log;
use crate::error::{Error, Result};
use crate::volume::state::Volume;
use std::io;
use std::time::{Duration, Instant};

/// Blocks reserved ahead of each head: what dirty memory takes while little is dirty, and a checkpoint with some deletes. In the order of the logs.
const ROOM: [u64; 7] = [128, 256, 768, 0, 64, 192, 64];
/// What of it stays while the volume is not mounted, for the first deletes of a mount: 1 MiB.
const REST: [u64; 7] = [64, 64, 0, 0, 32, 64, 32];
/// A host with less is asked for room before an address is used up, and little is left dirty: 16 MiB. Unit: blocks.
const TIGHT: u64 = 4096;
/// Dirty pages and nodes that such a host is to take at once.
const DIRTY_TIGHT: u64 = 64;

/// A host with more is not asked again at once: 4 GiB. Unit: blocks.
const PLENTY: u64 = 1 << 20;
/// For so long.
const AT_ONCE: Duration = Duration::from_millis(10);

impl Volume {
    /// Blocks that the host has free: now, or where there was plenty, a moment ago. `None` if the device has no such limit.
    pub(crate) fn host_free(&self) -> io::Result<Option<u64>> {
        if let Some((free, at)) = self.host_said.get()
            && free > PLENTY
            && at.elapsed() < AT_ONCE
        {
            return Ok(Some(free));
        }
        let free = self.dev.free_blocks()?;
        self.host_said.set(free.map(|free| (free, Instant::now())));
        Ok(free)
    }

    /// Reserves room where a head has used a quarter of it. True if all of it is there, or the device has no such thing.
    pub(crate) fn keep_room(&mut self) -> bool {
        Log::ALL.into_iter().all(|log| {
            let (head, want) = (self.marks[log.index()].head, ROOM[log.index()]);
            self.room[log.index()] >= head + want - want / 4 || self.reserve(log, want).is_ok()
        })
    }

    fn reserve(&mut self, log: Log, blocks: u64) -> io::Result<()> {
        let head = self.marks[log.index()].head;
        let end = (head + blocks).min(self.sb.geometry.area_blocks());
        let start = head.max(self.room[log.index()]);
        if start < end {
            match self
                .dev
                .preallocate(self.sb.geometry.range(log, start..end))
            {
                // A write will say what else is wrong.
                Err(e) if is_full(&e) => return Err(e),
                _ => self.room[log.index()] = end,
            }
        }
        Ok(())
    }

    /// Asks a host that is nearly full for the room of the next `blocks` of a log, so that no address is used up for nothing: who tries again and again would
    /// come to the limit of the log.
    pub(crate) fn ask_for_room(&mut self, log: Log, blocks: u64) -> Result<()> {
        let asking = |e| {
            Error::io(
                e,
                format_args!("reserving {blocks} blocks of the {log:?} log"),
            )
        };
        let head = self.marks[log.index()].head;
        if head + blocks <= self.room[log.index()] {
            return Ok(());
        }
        match self.host_free() {
            Ok(Some(free)) if free < blocks + TIGHT => self.reserve(log, blocks).map_err(asking),
            _ => Ok(()),
        }
    }

    /// True if the host has so little room that a checkpoint should not wait.
    pub(crate) fn must_hurry(&self) -> bool {
        self.pages.dirty() + self.dirty_nodes > DIRTY_TIGHT
            && self
                .host_free()
                .is_ok_and(|free| free.is_some_and(|free| free < self.dirty_nodes * 2 + TIGHT))
    }

    /// Gives up what only a volume in use needs.
    pub(crate) fn rest_room(&mut self) {
        for log in Log::ALL {
            let end = self.marks[log.index()].head + REST[log.index()];
            let room = self.room[log.index()];
            if end < room {
                // What stays is used by the next mount.
                let _ = self.dev.give_up(self.sb.geometry.range(log, end..room));
            }
        }
    }

    /// Gives up what was reserved between the marks of the last checkpoint and the heads, and takes it again ahead of them.
    pub(crate) fn move_room(&mut self) {
        for log in Log::ALL {
            let m = self.marks[log.index()];
            if m.scan < m.head {
                // What stays goes with its zone.
                let _ = self
                    .dev
                    .give_up(self.sb.geometry.range(log, m.scan..m.head));
            }
        }
        self.keep_room();
    }
}
