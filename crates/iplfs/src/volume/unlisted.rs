//! Blocks that only a damaged node of a fork point names.
//!
//! The fork may have a newer version of the node, which refers to the same blocks. So every own block below the heads of a
//! damaged fork point is held, unless it is known to be dead.

use crate::disk::address::{BlockAddr, Log};
use crate::error::{Error, Result};
use crate::volume::fork_points::Holder;
use crate::volume::state::Volume;
use std::collections::HashSet;
use std::ops::Range;

/// Returns whether a fork reads the state of a checkpoint.
pub(crate) fn is_forked(holders: &[(u64, Holder)], version: u64) -> bool {
    let mut of_version = holders.iter().filter(|(other, _)| *other == version);
    of_version.any(|(_, holder)| matches!(holder, Holder::Fork(_)))
}

impl Volume {
    /// Returns the own blocks below `heads` that the device has, that are not dead, and that are not `known`.
    pub(crate) fn unlisted_blocks(
        &self,
        heads: &[u64; 7],
        known: impl Fn(u64) -> bool,
    ) -> Result<Vec<u64>> {
        let own = Some(self.checkpoint.overflow.clone());
        let mut dead: Vec<Range<u64>> = self.discard_log.iter().collect();
        dead.extend(self.dead.runs().into_iter().chain(own));
        dead.sort_unstable_by_key(|run| run.start);
        let is_dead = |addr: u64| {
            let before = dead.partition_point(|run| run.start <= addr);
            dead[..before].last().is_some_and(|run| addr < run.end)
        };
        let g = self.sb.geometry;
        let mut blocks = Vec::new();
        for log in Log::ALL {
            let start = if log == Log::Meta { g.fixed_end() } else { 0 };
            let runs = self.dev.allocated(g.range(log, start..heads[log.index()]));
            let runs = runs.map_err(|e| Error::io(e, "listing allocated blocks"))?;
            let unlisted = runs.into_iter().flatten();
            blocks.extend(unlisted.filter(|addr| !is_dead(*addr) && !known(*addr)));
        }
        Ok(blocks)
    }

    /// Returns the blocks that may be needed for the damaged fork point of `holder` alone. Memory must be in sync with the
    /// device.
    pub(crate) fn unlisted_only_in(
        &self,
        holders: &[(u64, Holder)],
        holder: Holder,
        heads: &[u64; 7],
    ) -> Result<Vec<u64>> {
        let present = self.present().readable_references()?;
        let mut known: HashSet<u64> = present.addrs().collect();
        let others = holders.iter().filter(|(_, other)| *other != holder);
        let others: Vec<(u64, Holder)> = others.copied().collect();
        let mut other_heads = None;
        for (version, other) in &others {
            let Some(mut state) = self.state_of(*other)? else {
                continue;
            };
            let references = state.readable_references()?;
            if !references.damage.is_empty() && is_forked(&others, *version) {
                other_heads = Some(state.logs.heads());
            }
            known.extend(references.addrs());
        }
        self.unlisted_blocks(heads, |addr| {
            let is_below = |heads: &[u64; 7]| self.lies_below(BlockAddr(addr), heads);
            known.contains(&addr) || other_heads.as_ref().is_some_and(is_below)
        })
    }
}
