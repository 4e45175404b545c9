//! Trim: releasing blocks that the device holds and nothing refers to.

use super::checker::{CheckOptions, check};
use crate::device::read_block;
use crate::disk::address::{BlockAddr, Log};
use crate::error::{Error, Result};
use crate::options::DiscardRule;
use crate::volume::state::Volume;

impl Volume {
    /// Releases the blocks past the heads. The volume must be in sync, so that nothing refers to them. Returns how
    /// many were not zero: zeros are preallocated.
    pub(crate) fn clear_past_heads(&mut self) -> Result<u64> {
        if !self.dev.knows_allocated() {
            return Ok(0);
        }
        let mut blocks = 0;
        for log in Log::ALL {
            let head = self.logs.marks[log.index()].head;
            let g = self.sb.geometry;
            let runs = self.dev.allocated(g.range(log, head..g.area_blocks()));
            let runs = runs.map_err(|e| Error::io(e, "listing allocated blocks"))?;
            for run in runs {
                for addr in run.clone() {
                    let block = read_block(&*self.dev, BlockAddr(addr))?;
                    blocks += u64::from(block.iter().any(|byte| *byte != 0));
                }
                let io = |e| Error::io(e, "releasing blocks past the heads");
                self.dev.discard(run).map_err(io)?;
                self.logs.preallocated[log.index()] = head;
            }
        }
        self.maintain_preallocation();
        Ok(blocks)
    }

    /// Releases the blocks that the device holds and nothing refers to. Returns their number.
    pub fn trim(&mut self) -> Result<u64> {
        self.drain()?;
        // Rule 9. The volume is in sync, so the check sees exactly what the device holds.
        if !self.options.holds(DiscardRule::Trim) {
            return Ok(0);
        }
        let report = check(&self.dev, CheckOptions::default())?;
        if let Some(finding) = report.findings.first() {
            return Err(Error::Corrupt(format!("{finding}; nothing was trimmed")));
        }
        self.release_all_zones()?;
        let blocks = report.leaked_blocks() + self.clear_past_heads()?;
        for run in report.leaked {
            self.dead.insert_range(run);
        }
        self.needs_trim = false;
        self.drain()?;
        Ok(blocks)
    }
}
