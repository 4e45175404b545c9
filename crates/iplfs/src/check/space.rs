//! Checks of snapshots, of the discard log, and of blocks that the device holds.

use super::checker::Checker;
use crate::device::read_block;
use crate::disk::address::{BlockAddr, Log};
use crate::disk::checkpoint::Phase;
use crate::error::{Error, Result};
use crate::volume::fork_points::Holder;
use crate::volume::unlisted::is_forked;
use std::collections::{HashMap, HashSet};
use std::ops::Range;

impl Checker {
    /// Checks that the blocks of snapshots and fork points decode, are below the heads of their logs, and agree with the counts of
    /// the checkpoint. Damage that a repair recorded is no finding, and damage of a fork point is one of its fork.
    fn snapshots(&mut self) -> Result<()> {
        let (mut held, mut known) = (HashSet::new(), HashMap::new());
        let mut seen = None;
        let mut damaged_fork = None;
        let holders = self.volume.holders()?;
        for (version, holder) in holders.iter().copied() {
            let Some(mut state) = self.volume.state_of(holder)? else {
                continue;
            };
            // States of one version refer to the same blocks.
            let is_fork = matches!(holder, Holder::Fork(_));
            if seen.replace(version) == Some(version) && is_fork {
                continue;
            }
            let heads = state.logs.heads();
            let (place, mended, lost) = match holder {
                Holder::Snapshot(at) => {
                    let snapshot = &self.volume.snapshots.records[at];
                    let lost = (
                        u64::from(snapshot.lost_nodes),
                        u64::from(snapshot.lost_data),
                    );
                    let mended = self.volume.has_repaired_table(snapshot);
                    (format!("snapshot {}", snapshot.name), mended, lost)
                }
                Holder::Fork(child) => (format!("fork point of branch {child:#x}"), false, (0, 0)),
            };
            let references = match state.readable_references() {
                Ok(references) => references,
                Err(e) => {
                    self.find(&place, e);
                    continue;
                }
            };
            let fits = |addr: u64| {
                let log = self
                    .volume
                    .sb
                    .geometry
                    .place(BlockAddr(addr))
                    .map(|(log, _)| log);
                self.volume.lies_below(BlockAddr(addr), &heads) || mended && log == Some(Log::Meta)
            };
            if let Some(addr) = references.addrs().find(|addr| !fits(*addr)) {
                self.find(&place, format_args!("block {addr:#x} lies past its heads"));
            }
            if !references.damage.is_empty() && is_forked(&holders, version) {
                damaged_fork = Some(heads);
            }
            let mut damage = Vec::new();
            if self.data && !is_fork {
                let claimed = |addr| self.claimed.contains(&addr);
                let found = self.volume.damaged_data(&references, claimed, &mut known)?;
                if found.len() as u64 > lost.1 {
                    damage.extend(found);
                }
            }
            held.extend(
                references
                    .addrs()
                    .filter(|addr| !self.claimed.contains(addr))
                    // Those of other branches are held there.
                    .filter(|addr| !self.volume.is_shared(BlockAddr(*addr))),
            );
            if references.damage.len() as u64 > lost.0 && !is_fork {
                damage.extend(references.damage);
            }
            self.report.lost_in_snapshots += lost.0 + lost.1;
            let inos = damage.iter().filter_map(|damage| damage.ino).collect();
            let paths = state.paths_of(&inos);
            for damage in damage {
                let path = damage.ino.and_then(|ino| paths.get(&ino));
                let path = path.map_or(String::new(), |path| format!(" ({path})"));
                self.find(format_args!("{place}{path}"), damage.error);
            }
        }
        if let Some(heads) = damaged_fork {
            let known = |addr| self.claimed.contains(&addr) || held.contains(&addr);
            held.extend(self.volume.unlisted_blocks(&heads, known)?);
        }
        let is_shared = |addr: &&u64| self.volume.is_shared(BlockAddr(**addr));
        let shared = self.claimed.iter().filter(is_shared).count() as u64;
        let shared = shared + self.shared_without_block;
        if shared != self.volume.fork_points.shared_blocks {
            let what = format!(
                "{} blocks shared with other branches, counted {shared}",
                self.volume.fork_points.shared_blocks
            );
            self.find("checkpoint", what);
        }
        if held.len() as u64 != self.volume.snapshots.held_blocks {
            let what = format!(
                "{} blocks held for snapshots and forks, counted {}",
                self.volume.snapshots.held_blocks,
                held.len()
            );
            self.find("checkpoint", what);
        }
        self.claimed.extend(held);
        Ok(())
    }

    pub(super) fn space(&mut self) -> Result<()> {
        self.report.clean = self.phase == Phase::Clean;
        self.report.pending_blocks = self.volume.discard_log.blocks();
        let pending: Vec<Range<u64>> = self.volume.discard_log.iter().collect();
        self.snapshots()?;
        self.report.reachable = self.claimed.iter().copied().collect();
        self.report.reachable.sort_unstable();
        for run in &pending {
            let from = self
                .report
                .reachable
                .partition_point(|addr| *addr < run.start);
            if let Some(addr) = self
                .report
                .reachable
                .get(from)
                .copied()
                .filter(|addr| *addr < run.end)
            {
                self.find("discard log", format_args!("names live block {addr:#x}"));
            }
        }
        if !self.volume.dev.knows_allocated() {
            return Ok(());
        }
        let g = self.volume.sb.geometry;
        for log in Log::ALL {
            let m = self.volume.logs.marks[log.index()];
            let start = if log == Log::Meta { g.fixed_end() } else { 0 };
            // Blocks past the marks are handled by the next mount, unless there is nothing to recover.
            let end = if self.phase == Phase::Clean {
                g.area_blocks()
            } else {
                m.scan
            };
            let runs = self.volume.dev.allocated(g.range(log, start..end));
            let runs = runs.map_err(|e| Error::io(e, "listing allocated blocks"))?;
            for addr in runs.into_iter().flatten() {
                let logged = pending.partition_point(|run| run.end <= addr);
                let known = self.claimed.contains(&addr)
                    || pending.get(logged).is_some_and(|run| run.contains(&addr));
                if !known && !self.is_room(log, addr)? {
                    match self.report.leaked.last_mut() {
                        Some(run) if run.end == addr => run.end += 1,
                        _ => self.report.leaked.push(addr..addr + 1),
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns whether a block past the head is zero. Preallocated blocks look like data while the host caches them.
    fn is_room(&self, log: Log, addr: u64) -> Result<bool> {
        let head = self.volume.logs.marks[log.index()].head;
        let place = self.volume.sb.geometry.place(BlockAddr(addr));
        Ok(place.is_some_and(|(_, offset)| offset >= head)
            && read_block(&*self.volume.dev, BlockAddr(addr))?
                .iter()
                .all(|byte| *byte == 0))
    }
}
