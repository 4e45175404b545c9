//! Issuing discards to the device.
//!
//! The rules decide which discards are allowed, from the state of the volume. Issuing them takes long and can run in
//! parallel with other operations: no address is ever reused, so no change makes a dead block live again.

use crate::device::BlockDevice;
use crate::disk::address::{BlockAddr, Geometry, Log};
use crate::error::{Error, Result};
use crate::options::{DiscardMode, DiscardRule};
use crate::volume::state::Volume;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

/// Discards that are allowed, ready to be issued.
pub struct Discards {
    device: Arc<dyn BlockDevice>,
    geometry: Geometry,
    runs: std::vec::IntoIter<Range<u64>>,
    /// Zones that may be empty after the discards.
    zones: BTreeSet<u64>,
    /// Zones that log heads left since the last time.
    left: Vec<Range<u64>>,
    /// Offset in each log below which zones may be released.
    scan: [u64; 7],
    /// Rule 6: release only zones that are empty and below the head.
    only_whole: bool,
}

/// Discards that were issued.
#[derive(Debug, Default)]
pub struct Discarded {
    runs: Vec<Range<u64>>,
    zones: u64,
}

impl Discards {
    /// Issues at most `max` discards. Returns `None` after the last.
    pub fn issue(&mut self, max: usize) -> Option<Discarded> {
        let next: Vec<_> = self.runs.by_ref().take(max).collect();
        if next.is_empty() {
            return None;
        }
        // A refused run stays in the log and is retried: a failed discard is a delay, not damage.
        let is_issued = |run: &Range<u64>| self.device.discard(run.clone()).is_ok();
        Some(Discarded {
            runs: next.into_iter().filter(is_issued).collect(),
            zones: 0,
        })
    }

    /// Releases zones (rule 6): those that lie wholly below the durable head of their log and are empty. Must be
    /// called after the last discard, because discards empty the zones.
    pub fn release_zones(mut self) -> Result<Discarded> {
        let Some(zone_blocks) = self.device.zone_blocks() else {
            return Ok(Discarded::default());
        };
        let failed = |e| Error::io(e, "listing zones");
        for zones in self.left {
            self.zones.extend(self.device.zones(zones).map_err(failed)?);
        }
        let mut released = 0;
        for zone in self.zones {
            let blocks = zone * zone_blocks..(zone + 1) * zone_blocks;
            let Some((log, first)) = self.geometry.place(BlockAddr(blocks.start)) else {
                continue;
            };
            let below = first + zone_blocks <= self.scan[log.index()];
            let empty = self.device.allocated(blocks).map_err(failed)?.is_empty();
            // A zone that could not be released stays empty, and the next trim tries again.
            if (below && empty || !self.only_whole) && self.device.release_zone(zone).is_ok() {
                released += 1;
            }
        }
        Ok(Discarded {
            runs: Vec::new(),
            zones: released,
        })
    }
}

impl Volume {
    /// Returns the discards that the rules allow.
    pub fn discards(&mut self) -> Discards {
        let max = match self.options.discard {
            DiscardMode::Eager | DiscardMode::Deferred => usize::MAX,
            DiscardMode::Never => 0,
        };
        let mut before = if self.options.holds(DiscardRule::OlderCheckpoint) {
            self.checkpoint.version
        } else {
            self.checkpoint.version + 1
        };
        if let Some(oldest) = self.readers.oldest()
            && self.options.holds(DiscardRule::Readers)
        {
            before = before.min(oldest + 1);
        }
        let runs = self
            .discard_log
            .eligible(before, self.options.holds(DiscardRule::WholeGranules))
            .into_iter();
        let runs: Vec<_> = runs
            .take(max)
            .map(|run| self.whole_granules(&run))
            .filter(|run| run.start < run.end)
            .collect();
        let mut zones = BTreeSet::new();
        let mut left = Vec::new();
        if let Some(zone_blocks) = self.dev.zone_blocks() {
            let zones_of =
                |run: &Range<u64>| run.start / zone_blocks..run.end.div_ceil(zone_blocks);
            zones.extend(runs.iter().flat_map(zones_of));
            for log in Log::ALL {
                let scan = self.logs.marks[log.index()].scan;
                let seen = std::mem::replace(&mut self.logs.zones_scanned[log.index()], scan);
                let passed = self.sb.geometry.range(log, seen..scan);
                left.push(passed.start / zone_blocks..passed.end / zone_blocks);
            }
            left.retain(|zones| zones.start < zones.end);
        }
        Discards {
            device: self.dev.clone(),
            geometry: self.sb.geometry,
            runs: runs.into_iter(),
            zones,
            left,
            scan: self.logs.marks.map(|m| m.scan),
            only_whole: self.options.holds(DiscardRule::EmptyZones),
        }
    }

    /// Records that discards were issued.
    pub fn discarded(&mut self, done: Discarded) {
        self.stats.discard_commands += done.runs.len() as u64;
        self.stats.released_zones += done.zones;
        for run in done.runs {
            self.stats.discarded_blocks += run.end - run.start;
            self.discard_log.mark_issued(run);
        }
    }

    /// Issues all discards that the rules allow.
    pub(crate) fn issue_discards(&mut self) -> Result<()> {
        if self.options.discard == DiscardMode::Never {
            return Ok(());
        }
        let mut discards = self.discards();
        while let Some(done) = discards.issue(usize::MAX) {
            self.discarded(done);
        }
        let released = discards.release_zones()?;
        self.discarded(released);
        Ok(())
    }

    /// Examines every zone again, including those that a crash left empty.
    pub(crate) fn release_all_zones(&mut self) -> Result<()> {
        self.logs.zones_scanned = [0; 7];
        let released = self.discards().release_zones()?;
        self.discarded(released);
        Ok(())
    }

    /// Returns whether a checkpoint would allow discards of dead blocks although nothing else has changed.
    pub fn checkpoint_frees_blocks(&self) -> bool {
        self.options.discard != DiscardMode::Never
            && self.discard_log.has_work(self.checkpoint.version, |run| {
                let run = self.whole_granules(run);
                run.start < run.end
            })
    }

    /// Rule 7: the device would ignore part of a granule. Such a part waits in the log for its neighbours.
    fn whole_granules(&self, run: &Range<u64>) -> Range<u64> {
        if !self.options.holds(DiscardRule::WholeGranules) {
            return run.clone();
        }
        let granule = self.dev.granule();
        run.start.next_multiple_of(granule)..run.end - run.end % granule
    }
}
