//! Releasing what only a snapshot or a fork point holds.
//!
//! ```text
//!  older ─── released ─── newer, or present          blocks that only the middle one refers to are dead
//!
//!  begin ─► flushes of a checkpoint ─► compare ─► end ─► checkpoint ─► finish
//!    └──────── between begin and end, operations go on ───┘
//! ```
//!
//! The table of the released state is compared with that of its newer neighbour. If that is the present, a checkpoint keeps
//! it as it was. Blocks that die meanwhile are listed, because the released state still holds them.

use crate::checkpoint::state::Checkpoint;
use crate::device::BranchDevice;
use crate::disk::address::BlockAddr;
use crate::disk::inode::Time;
use crate::error::{Errno, Result};
use crate::log::dead_blocks::DeadBlocks;
use crate::log::readers::ReaderGuard;
use crate::volume::difference::Difference;
use crate::volume::fork_points::Holder;
use crate::volume::lineage::newest_heads;
use crate::volume::state::Volume;
use crate::volume::unlisted::is_forked;
use std::collections::{BTreeSet, HashSet};
use std::fs::File;

/// Deletion of a snapshot, or release of the fork point of a deleted fork, for callers that compare and flush without access
/// to the volume. [`Volume::end_release`] ends it in any case. At most one is under way.
pub struct Release {
    target: Target,
    checkpoint: Option<Checkpoint>,
    /// States to compare. None if that was done.
    comparison: Option<Comparison>,
    /// Blocks that only the released state refers to. None if they are not known.
    freed: Option<Freed>,
    /// Until the deletion is durable, no process mounts the snapshot.
    lock: Option<File>,
    /// Keeps discards away from what is compared.
    _reader: ReaderGuard,
}

/// Released state, which the next checkpoint makes durable.
pub struct Released {
    child: Option<u64>,
    _lock: Option<File>,
}

enum Target {
    Snapshot(String),
    Fork(u64),
}

struct Comparison {
    state: Volume,
    newer: Volume,
    is_newer_forked: bool,
    /// Heads of an older state. What lies below them is older than `state`.
    older: Option<[u64; 7]>,
    /// Older states that do not refer to all that they shared.
    repaired: Vec<Volume>,
    is_fork: bool,
}

#[derive(Default)]
struct Freed {
    blocks: BTreeSet<u64>,
    needs_trim: bool,
    /// Set if blocks that only damaged nodes refer to may be needed.
    needs_unlisted: bool,
    heads: [u64; 7],
}

impl Release {
    /// Checkpoint that has to be sealed and ended before the comparison.
    pub fn checkpoint(&self) -> Option<Checkpoint> {
        self.checkpoint
    }

    /// Finds the blocks that only the released state refers to. Reads the device.
    pub fn compare(&mut self) -> Result<()> {
        self.freed = match self.comparison.take() {
            Some(comparison) => Some(comparison.run()?),
            None => Some(Freed::default()),
        };
        Ok(())
    }
}

impl Comparison {
    fn run(mut self) -> Result<Freed> {
        let difference = Difference::between(&mut self.state, &mut self.newer)?;
        let mut repaired = HashSet::new();
        for state in &mut self.repaired {
            repaired.extend(state.readable_references()?.addrs());
        }
        let state = &self.state;
        let is_below = |addr: u64, heads: &[u64; 7]| state.lies_below(BlockAddr(addr), heads);
        let needs_trim = difference.is_damaged();
        let mut blocks: BTreeSet<u64> = difference.only_older.into_iter().collect();
        let is_older = |addr| self.older.is_some_and(|heads| is_below(addr, &heads));
        blocks.retain(|addr| !is_older(*addr) && !repaired.contains(addr));
        if difference.is_newer_damaged && self.is_newer_forked {
            // The fork of the newer one may refer to all that is older than it.
            let heads = self.newer.logs.heads();
            blocks.retain(|addr| !is_below(*addr, &heads));
        }
        Ok(Freed {
            blocks,
            needs_trim,
            needs_unlisted: difference.is_older_damaged && self.is_fork,
            heads: state.logs.heads(),
        })
    }
}

impl Volume {
    /// Begins the deletion of a snapshot.
    ///
    /// # Errors
    /// `Busy` while the snapshot is open, also by [`mount_snapshot`](crate::mount_snapshot). ENOENT if it does not exist.
    pub fn begin_delete_snapshot(&mut self, name: &str) -> Result<Release> {
        self.writable()?;
        let at = self.snapshots.position(name).ok_or(Errno::NotFound)?;
        let dev = self.dev.clone();
        let version = self.snapshots.records[at].version;
        // A fork in progress needs the lock, too.
        self.complete_checkpoint()?;
        self.settle_fork();
        let lock = match dev.branch() {
            Some(branch) => Some(branch.lock_snapshot(version)?.ok_or(Errno::Busy)?),
            None => None,
        };
        let mut release = self.begin_release(Target::Snapshot(name.to_owned()))?;
        release.lock = lock;
        Ok(release)
    }

    /// Begins the release of the fork point of a deleted fork. None if there is none. Other processes delete forks; the mount
    /// of the parent calls this when it is told so.
    pub fn begin_release_fork(&mut self) -> Result<Option<Release>> {
        let dev = self.dev.clone();
        let Some(branch) = dev.branch().filter(|branch| branch.layout().is_some()) else {
            return Ok(None);
        };
        let children = branch.children()?;
        let Some(dead) = children.into_iter().find(|child| child.is_dead) else {
            return Ok(None);
        };
        self.writable()?;
        self.begin_release(Target::Fork(dead.number)).map(Some)
    }

    fn begin_release(&mut self, target: Target) -> Result<Release> {
        self.complete_checkpoint()?;
        self.settle_fork();
        let reader = self.register_reader();
        let holder = match &target {
            Target::Snapshot(name) => {
                if self.snapshots.is_open(name) {
                    return Err(Errno::Busy.into());
                }
                let at = self.snapshots.position(name).ok_or(Errno::NotFound)?;
                Some(Holder::Snapshot(at))
            }
            // A fork point that was released before only has to be forgotten.
            Target::Fork(child) if *child == self.fork_points.released => None,
            Target::Fork(child) => Some(Holder::Fork(*child)),
        };
        let (mut comparison, mut checkpoint) = (None, None);
        if let Some(holder) = holder {
            (comparison, checkpoint) = self.begin_comparison(holder)?;
        }
        self.snapshots.died_meanwhile = comparison
            .is_some()
            .then(|| DeadBlocks::new(self.sb.geometry.section_bits));
        Ok(Release {
            target,
            checkpoint,
            comparison,
            freed: None,
            lock: None,
            _reader: reader,
        })
    }

    /// Returns the states to compare, and the checkpoint that keeps the present if it is one of them.
    fn begin_comparison(
        &mut self,
        holder: Holder,
    ) -> Result<(Option<Comparison>, Option<Checkpoint>)> {
        let holders = self.holders()?;
        let Some(at) = holders.iter().position(|(_, other)| *other == holder) else {
            return Ok((None, None));
        };
        let Some(state) = self.state_of(holder)? else {
            return Ok((None, None));
        };
        // A block that this state and an older one share is older than the heads of the latter. A snapshot with losses does
        // not refer to all that it shared, unless a fork may.
        let (mut older, mut repaired) = (self.fork_points.origin, Vec::new());
        for (version, holder) in holders[..at].iter().rev() {
            let Some(state) = self.state_of(*holder)? else {
                continue;
            };
            let has_losses = match holder {
                Holder::Snapshot(at) => self.snapshots.records[*at].lost_nodes > 0,
                Holder::Fork(_) => false,
            };
            let is_whole = state.has_table_below_heads() && !has_losses;
            if is_whole || is_forked(&holders, *version) {
                older = Some(state.logs.heads());
                break;
            }
            repaired.push(state);
        }
        let (mut newer, mut is_newer_forked) = (None, false);
        for (version, holder) in &holders[at + 1..] {
            newer = self.state_of(*holder)?;
            if newer.is_some() {
                is_newer_forked = is_forked(&holders, *version);
                break;
            }
        }
        let (newer, checkpoint) = match newer {
            Some(newer) => (newer, None),
            None => {
                let (checkpoint, point) = self.begin_fork_point(Time::default())?;
                (self.at_fork_point(&point), Some(checkpoint))
            }
        };
        let comparison = Comparison {
            state,
            newer,
            is_newer_forked,
            older,
            repaired,
            is_fork: matches!(holder, Holder::Fork(_)),
        };
        Ok((Some(comparison), checkpoint))
    }

    /// Ends a release. If it was compared, the state holds nothing any longer, and the next checkpoint makes that durable.
    /// [Finish](Released::finish) it then.
    pub fn end_release(&mut self, release: Release) -> Result<Option<Released>> {
        let meanwhile = self.snapshots.died_meanwhile.take();
        let Some(mut freed) = release.freed else {
            return Ok(None);
        };
        self.writable()?;
        let child = match &release.target {
            Target::Snapshot(name) if self.snapshots.is_open(name) => {
                return Err(Errno::Busy.into());
            }
            Target::Snapshot(_) => None,
            Target::Fork(child) => Some(*child),
        };
        let dev = self.dev.clone();
        self.needs_trim |= freed.needs_trim;
        if let (true, Some(child)) = (freed.needs_unlisted, child) {
            self.checkpoint()?;
            let holders = self.holders()?;
            let unlisted = self.unlisted_only_in(&holders, Holder::Fork(child), &freed.heads)?;
            freed.blocks.extend(unlisted);
        }
        let newest = match (child, dev.branch()) {
            (Some(child), Some(branch)) => self.newest_without(branch, child)?,
            _ => self.fork_points.newest,
        };
        self.mutate(|v| {
            match release.target {
                Target::Snapshot(name) => v.snapshots.records.retain(|s| s.name != name),
                Target::Fork(child) => v.fork_points.released = child,
            }
            v.fork_points.newest = newest;
            let died = meanwhile.map_or_else(Vec::new, |died| died.runs());
            let unheld = died.into_iter().flatten();
            let unheld = unheld.filter(|addr| !v.is_held(BlockAddr(*addr)));
            freed.blocks.extend(unheld);
            for addr in freed.blocks {
                v.snapshots.held_blocks = v.snapshots.held_blocks.saturating_sub(1);
                v.dead.insert(BlockAddr(addr));
            }
            Ok(())
        })?;
        let _lock = release.lock;
        Ok(Some(Released { child, _lock }))
    }

    fn newest_without(&self, branch: &dyn BranchDevice, child: u64) -> Result<Option<[u64; 7]>> {
        let mut children = self.pinning_children(branch)?;
        children.retain(|other| other.number != child);
        newest_heads(branch, &children)
    }

    /// Deletes a snapshot, in one call that waits for the device.
    ///
    /// # Errors
    /// Those of [`begin_delete_snapshot`](Self::begin_delete_snapshot).
    pub fn delete_snapshot(&mut self, name: &str) -> Result<()> {
        let release = self.begin_delete_snapshot(name)?;
        self.release_now(release)
    }

    /// Deletes a snapshot that no other process has mounted.
    pub(crate) fn remove_snapshot(&mut self, name: &str) -> Result<()> {
        let release = self.begin_release(Target::Snapshot(name.to_owned()))?;
        self.release_now(release)
    }

    /// Releases the fork points of deleted forks, in one call that waits for the device. Returns their number. Every mount for
    /// writing calls it once.
    pub fn release_forks(&mut self) -> Result<usize> {
        let mut count = 0;
        while let Some(release) = self.begin_release_fork()? {
            self.release_now(release)?;
            count += 1;
        }
        Ok(count)
    }

    fn release_now(&mut self, mut release: Release) -> Result<()> {
        let compared = self.complete_checkpoint().and_then(|()| release.compare());
        let released = self.end_release(release)?;
        compared?;
        // The checkpoint has to be durable, also if an earlier attempt failed.
        self.sync()?;
        released.map_or(Ok(()), |released| released.finish(self))
    }
}

impl Released {
    /// Forgets a deleted fork, after a checkpoint that began after [`Volume::end_release`].
    pub fn finish(self, volume: &Volume) -> Result<()> {
        match (self.child, volume.dev.branch()) {
            (Some(child), Some(branch)) => branch.forget_child(child),
            _ => Ok(()),
        }
    }
}
