//! Preallocation past the heads, so that a checkpoint, and thus a delete, succeeds on a full host.
//!
//! Space reserved elsewhere, as a ballast file, could be taken by other programs between its release and its use.
//! Space reserved at the next addresses cannot. The device does not count it as allocated until it is written. Space
//! that a head leaves unwritten is released.
//!
//! While the host is short of space, what is promised to clients is preallocated, too.

use crate::device::is_full;
use crate::disk::address::Log;
use crate::error::{Error, Result};
use crate::volume::promises::SHORT;
use crate::volume::state::Volume;
use std::io;

/// Blocks preallocated past each head, in the order of the logs: enough for little dirty memory and a checkpoint with
/// some deletes.
const PREALLOCATED: [u64; 7] = [128, 256, 768, 0, 64, 192, 64];
/// Part of it that stays while the volume is not mounted, for the first deletes of a mount: 1 MiB.
const PREALLOCATED_UNMOUNTED: [u64; 7] = [64, 64, 0, 0, 32, 64, 32];
/// Free space of the host below which space is reserved before an address is used, and little memory stays dirty: 16
/// MiB. Unit: blocks.
const LOW_SPACE: u64 = 4096;
/// Maximum number of dirty pages and nodes on such a host.
const LOW_SPACE_DIRTY_MAX: u64 = 64;

/// Log of file data that is promised, whatever its temperature, while its space is preallocated.
pub(crate) const PROMISED_LOG: Log = Log::WarmData;
/// Preallocation beyond what is promised, so that not every promise changes a file: 1 MiB. Unit: blocks.
const PROMISED_PIECE: u64 = 256;

impl Volume {
    /// Returns the free blocks of the host, `None` if the device has no such limit.
    pub(crate) fn host_free(&self) -> io::Result<Option<u64>> {
        self.free_space.blocks(&*self.dev)
    }

    /// Preallocates for logs that have used a quarter of their preallocation. Returns whether all of it is there, or
    /// the device cannot preallocate.
    pub(crate) fn maintain_preallocation(&mut self) -> bool {
        Log::ALL.into_iter().all(|log| {
            let (head, want) = (self.logs.marks[log.index()].head, PREALLOCATED[log.index()]);
            self.logs.preallocated[log.index()] >= head + want - want / 4
                || self.reserve(log, want).is_ok()
        })
    }

    /// End of the preallocation of the log of promised data, if `blocks` more are promised.
    fn promised_end(&self, blocks: u64) -> u64 {
        let log = PROMISED_LOG.index();
        let promised = self.pages.dirty() + self.promises.blocks + blocks;
        self.logs.marks[log].head + PREALLOCATED[log] + promised
    }

    /// Blocks of dirty and promised data that are preallocated.
    pub(crate) fn preallocated_promises(&self) -> u64 {
        let log = PROMISED_LOG.index();
        let usual = self.logs.marks[log].head + PREALLOCATED[log];
        self.logs.preallocated[log]
            .min(self.promised_end(0))
            .saturating_sub(usual)
    }

    /// Preallocates for what is promised and `blocks` more, if the host is short of space: neither other programs nor
    /// processes that write other branches can take it. Returns false if the host is full.
    pub(crate) fn preallocate_promises(&mut self, blocks: u64) -> bool {
        let log = PROMISED_LOG;
        let end = self.promised_end(blocks);
        if self.logs.preallocated[log.index()] >= end {
            return true;
        }
        match self.host_free() {
            Ok(Some(free)) if free < SHORT => {}
            _ => return true,
        }
        let want = end - self.logs.marks[log.index()].head;
        self.reserve(log, want + PROMISED_PIECE).is_ok() || self.reserve(log, want).is_ok()
    }

    fn reserve(&mut self, log: Log, blocks: u64) -> io::Result<()> {
        let head = self.logs.marks[log.index()].head;
        let end = (head + blocks).min(self.log_end(head));
        let start = head.max(self.logs.preallocated[log.index()]);
        if start < end {
            match self
                .dev
                .preallocate(self.sb.geometry.range(log, start..end))
            {
                // Other errors are reported by the write.
                Err(e) if is_full(&e) => return Err(e),
                _ => self.logs.preallocated[log.index()] = end,
            }
        }
        Ok(())
    }

    /// Preallocates the next `blocks` of a log if the host is nearly full, so that a failed write does not use up
    /// addresses. Repeated attempts would otherwise exhaust the log.
    pub(crate) fn preallocate_if_low(&mut self, log: Log, blocks: u64) -> Result<()> {
        let failed = |e| {
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
                self.reserve(log, blocks).map_err(failed)
            }
            _ => Ok(()),
        }
    }

    /// Returns whether the host has so little free space that a checkpoint should not be deferred.
    pub(crate) fn is_host_nearly_full(&self) -> bool {
        self.pages.dirty() + self.nodes.dirty_count() > LOW_SPACE_DIRTY_MAX
            && self.host_free().is_ok_and(|free| {
                free.is_some_and(|free| free < self.nodes.dirty_count() * 2 + LOW_SPACE)
            })
    }

    /// Releases the preallocation that only a mounted volume needs.
    pub(crate) fn shrink_preallocation(&mut self) {
        for log in Log::ALL {
            let end = self.logs.marks[log.index()].head + PREALLOCATED_UNMOUNTED[log.index()];
            let preallocated = self.logs.preallocated[log.index()];
            if end < preallocated {
                // If this fails the next mount uses it.
                let _ = self
                    .dev
                    .release_preallocated(self.sb.geometry.range(log, end..preallocated));
            }
        }
    }

    /// Releases what was preallocated between the marks of the last checkpoint and the heads, and preallocates past
    /// the heads.
    pub(crate) fn move_preallocation(&mut self) {
        for log in Log::ALL {
            let m = self.logs.marks[log.index()];
            if m.scan < m.head {
                // If this fails it is released with its zone.
                let _ = self
                    .dev
                    .release_preallocated(self.sb.geometry.range(log, m.scan..m.head));
            }
        }
        self.maintain_preallocation();
        // Promises that were kept, or given up.
        let (log, end) = (PROMISED_LOG, self.promised_end(0));
        let preallocated = self.logs.preallocated[log.index()];
        if end + PROMISED_PIECE < preallocated {
            let rest = self.sb.geometry.range(log, end..preallocated);
            if self.dev.release_preallocated(rest).is_ok() {
                self.logs.preallocated[log.index()] = end;
            }
        }
    }
}
