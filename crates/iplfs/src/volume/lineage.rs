//! Fork points and snapshots of a branch, one list by age, and the regions of a branch.

use crate::checkpoint::state::Checkpoint;
use crate::device::{BranchDevice, Child};
use crate::disk::address::{BlockAddr, Log, Nid};
use crate::disk::branch::ForkPoint;
use crate::disk::checkpoint::LogMarks;
use crate::disk::superblock::BRANCHES;
use crate::error::{Error, Result};
use crate::nodes::cache::NodeCache;
use crate::nodes::pages::PageCache;
use crate::volume::difference::Difference;
use crate::volume::fork_points::Holder;
use crate::volume::state::Volume;

impl Volume {
    /// Reads which fork points are pinned.
    pub(crate) fn load_fork_points(&mut self) -> Result<()> {
        let dev = self.dev.clone();
        let Some(branch) = dev.branch() else {
            return match self.sb.incompat & BRANCHES {
                0 => Ok(()),
                _ => Err(Error::Unsupported(
                    "it has branches, and only a directory of zone files can have them".to_owned(),
                )),
            };
        };
        self.fork_points.origin = branch.origin().map(|origin| origin.state.heads);
        let mut children = branch.children()?;
        self.fork_points.has_dead = children.iter().any(|child| child.is_dead);
        children.retain(|child| child.number != self.fork_points.released);
        let version = self.checkpoint.version;
        if let Some(child) = children.iter().find(|child| child.version > version) {
            return Err(Error::corrupt(
                format_args!("checkpoint {version}"),
                format_args!(
                    "is older than checkpoint {}, from which branch number {} was forked",
                    child.version, child.number
                ),
            ));
        }
        self.fork_points.newest = newest_heads(branch, &children)?;
        Ok(())
    }

    /// Children whose fork points are not released.
    pub(crate) fn pinning_children(&self, branch: &dyn BranchDevice) -> Result<Vec<Child>> {
        let mut children = branch.children()?;
        children.retain(|child| child.number != self.fork_points.released);
        Ok(children)
    }

    /// Returns whether a block belongs to another branch.
    pub(crate) fn is_shared(&self, addr: BlockAddr) -> bool {
        let origin = &self.fork_points.origin;
        origin.is_some_and(|heads| self.lies_below(addr, &heads))
    }

    /// Returns whether a node is still the version of another branch.
    pub(crate) fn is_inherited(&mut self, nid: Nid) -> Result<bool> {
        if self.fork_points.origin.is_none() {
            return Ok(false);
        }
        let entry = self.nat.get(&*self.dev, nid)?;
        Ok(self.is_shared(entry.addr) && !self.nodes.is_dirty(entry.ino, nid))
    }

    /// Counts a node as one of this branch, before it gets a version of its own or is freed. What it reserves counts from
    /// then on.
    pub(crate) fn detach(&mut self, nid: Nid) -> Result<()> {
        if self.is_inherited(nid)? {
            let without_block = self.node(nid)?.body.without_block();
            let shared = &mut self.fork_points.shared_blocks;
            *shared = shared.saturating_sub(without_block);
        }
        Ok(())
    }

    /// Returns whether the fork that is being made may refer to a block.
    pub(crate) fn pending_fork_holds(&self, addr: BlockAddr) -> bool {
        let pending = self.fork_points.pending.as_ref();
        pending.is_some_and(|pending| self.lies_below(addr, &pending.heads))
    }

    /// Makes the pin of a pending fork durable, or gives its blocks up. A checkpoint must not be in progress.
    pub(crate) fn settle_fork(&mut self) {
        let Some(pending) = self.fork_points.pending.take() else {
            return;
        };
        let pinned = match pending.version <= self.checkpoint.version {
            true => pending.pin.pin().is_ok(),
            false => {
                pending.pin.abandon();
                false
            }
        };
        if !pinned {
            // The maker of the fork reports why.
            self.dead.absorb(&pending.held);
            return;
        }
        self.sb.incompat |= BRANCHES;
        self.snapshots.held_blocks += pending.held.blocks();
        let newest = self
            .fork_points
            .newest
            .filter(|heads| *heads > pending.heads);
        self.fork_points.newest = newest.or(Some(pending.heads));
    }

    /// Returns the states that hold blocks and their checkpoints, oldest first. Of one version, snapshots come first.
    pub(crate) fn holders(&self) -> Result<Vec<(u64, Holder)>> {
        let snapshots = self.snapshots.records.iter().enumerate();
        let mut holders: Vec<(u64, Holder)> = snapshots
            .map(|(at, snapshot)| (snapshot.version, Holder::Snapshot(at)))
            .collect();
        if let Some(branch) = self.dev.branch() {
            for child in self.pinning_children(branch)? {
                holders.push((child.version, Holder::Fork(child.number)));
            }
        }
        // States of one version refer to the same blocks.
        holders.sort_by_key(|(version, _)| *version);
        Ok(holders)
    }

    /// Creates the state of a holder. `None` if it does not exist any longer.
    pub(crate) fn state_of(&self, holder: Holder) -> Result<Option<Volume>> {
        match (holder, self.dev.branch()) {
            (Holder::Snapshot(at), _) => Ok(Some(self.at_snapshot(at))),
            (Holder::Fork(_), None) => Ok(None),
            (Holder::Fork(child), Some(branch)) => {
                let point = branch.fork_point(child)?;
                Ok(point.map(|point| self.at_fork_point(&point)))
            }
        }
    }

    pub(crate) fn at_fork_point(&self, point: &ForkPoint) -> Volume {
        let (dev, sb) = (self.dev.clone(), self.sb.clone());
        let mut state = Self::of_snapshot(dev, sb, &point.state);
        state.nat.replay(point.journal.clone());
        state
    }

    /// Creates the present state as one that can be compared. Memory must be in sync with the device.
    pub(crate) fn present(&self) -> Volume {
        let mut state = Volume::empty(self.dev.clone(), self.sb.clone(), self.options.clone());
        state.logs.marks = self.logs.marks;
        state.nat.height = self.nat.height;
        state.nat.root = self.nat.root;
        state.nat.blocks = self.nat.blocks;
        state.nat.next_nid = self.nat.next_nid;
        let journal = self.nat.journal().iter();
        state
            .nat
            .replay(journal.map(|(nid, entry)| (*nid, *entry)).collect());
        state
    }

    /// Returns false for a snapshot whose table was written again by a repair, past its heads.
    pub(crate) fn has_table_below_heads(&self) -> bool {
        let root = self.nat.root.addr;
        !root.is_mapped() || self.lies_below(root, &self.logs.heads())
    }

    /// Drops the present state and the snapshots of a deleted branch. What remains is the state of its newest fork
    /// point, for the children that read it.
    pub(crate) fn collapse(&mut self) -> Result<()> {
        self.release_forks()?;
        while let Some(snapshot) = self.snapshots.records.last() {
            let name = snapshot.name.clone();
            self.remove_snapshot(&name)?;
        }
        self.checkpoint()?;
        let mut newest = None;
        for (_, holder) in self.holders()?.into_iter().rev() {
            newest = self.state_of(holder)?;
            if newest.is_some() {
                break;
            }
        }
        let Some(mut newest) = newest else {
            return Ok(());
        };
        let mut present = self.present();
        let difference = Difference::between(&mut newest, &mut present)?;
        self.needs_trim |= difference.is_damaged();
        let heads = newest.logs.heads();
        self.mutate(|v| {
            for addr in difference.only_newer {
                let addr = BlockAddr(addr);
                if v.is_shared(addr) {
                    v.fork_points.shared_blocks = v.fork_points.shared_blocks.saturating_sub(1);
                } else if difference.is_older_damaged && v.lies_below(addr, &heads) {
                    v.snapshots.held_blocks += 1;
                } else {
                    v.dead.insert(addr);
                }
            }
            for (node, blocks) in difference.without_block {
                if v.is_shared(node) {
                    v.fork_points.shared_blocks += blocks;
                }
            }
            for addr in difference.only_older {
                match v.is_shared(BlockAddr(addr)) {
                    true => v.fork_points.shared_blocks += 1,
                    false => {
                        let held = &mut v.snapshots.held_blocks;
                        *held = held.saturating_sub(1);
                    }
                }
            }
            v.nodes = NodeCache::default();
            v.pages = PageCache::default();
            v.orphans.clear();
            (v.live, v.inodes) = (newest.live, newest.inodes);
            v.nat = std::mem::take(&mut newest.nat);
            Ok(())
        })?;
        self.drain()
    }

    /// End of what a log may take without leaving its region. Unit: blocks from the start of the area.
    pub(crate) fn log_end(&self, head: u64) -> u64 {
        let area = self.sb.geometry.area_blocks();
        let end = self.dev.branch().and_then(|b| b.region_end(head));
        end.map_or(area, |end| end.min(area))
    }

    /// Returns whether the region of `head` has too little space after `from` for the checkpoints to come.
    pub(crate) fn is_region_full(&self, head: u64, from: u64) -> bool {
        let end = self.log_end(head);
        end < self.sb.geometry.area_blocks() && from + 2 * self.options.window_blocks > end
    }

    /// Takes a region for a log.
    pub(crate) fn take_region(&self) -> Result<u64> {
        match self.dev.branch() {
            Some(branch) => branch.take_region(),
            None => Err(Error::Limit("the address space is used up".to_owned())),
        }
    }

    /// Moves logs that come to the end of their region to new ones. Two checkpoints without operations in between
    /// enclose the move: what was appended before lies behind the marks of the first one.
    pub(crate) fn leave_full_regions(&mut self) -> Result<()> {
        let window = self.options.window_blocks;
        let is_full = |log: &Log| {
            let head = self.logs.marks[log.index()].head;
            self.is_region_full(head, head + window)
        };
        let full: Vec<Log> = Log::ALL.into_iter().filter(is_full).collect();
        if full.is_empty() {
            return Ok(());
        }
        let mut starts = Vec::new();
        for _ in &full {
            match self.take_region() {
                Ok(start) => starts.push(start),
                // The rest of the region can still be used.
                Err(Error::Limit(_)) => break,
                Err(e) => return Err(e),
            }
        }
        if starts.is_empty() {
            return Ok(());
        }
        self.write_dirty()?;
        self.discard_prepared();
        self.commit(crate::disk::checkpoint::Phase::Mounted)?;
        for (log, start) in full.into_iter().zip(starts) {
            let (head, reserved) = (
                self.logs.marks[log.index()].head,
                self.logs.preallocated[log.index()],
            );
            if head < reserved {
                // If this fails it is released with its zone.
                let range = self.sb.geometry.range(log, head..reserved);
                let _ = self.dev.release_preallocated(range);
            }
            self.logs.preallocated[log.index()] = start;
            self.logs.marks[log.index()] = LogMarks {
                scan: start,
                head: start,
                limit: start + window,
                far: start + 2 * window,
            };
            if log == Log::WarmNode {
                self.logs.prepared = start;
            }
        }
        self.commit(crate::disk::checkpoint::Phase::Mounted)
    }

    /// Returns the checkpoint whose state a fork takes, and that state.
    pub(crate) fn begin_fork_point(
        &mut self,
        now: crate::disk::inode::Time,
    ) -> Result<(Checkpoint, ForkPoint)> {
        let (checkpoint, seal) = self.begin_checkpoint_sealed()?;
        let journal = self.nat.journal().iter();
        let journal = journal.map(|(nid, entry)| (*nid, *entry)).collect();
        let orphans = self.orphans.iter().copied().collect();
        Ok((checkpoint, ForkPoint::of_seal(&seal, journal, orphans, now)))
    }
}

/// Returns the heads of the newest fork point of `children`.
pub(crate) fn newest_heads(
    branch: &dyn BranchDevice,
    children: &[Child],
) -> Result<Option<[u64; 7]>> {
    let mut by_age: Vec<&Child> = children.iter().collect();
    by_age.sort_unstable_by_key(|child| child.version);
    while let Some(child) = by_age.pop() {
        if let Some(point) = branch.fork_point(child.number)? {
            return Ok(Some(point.state.heads));
        }
    }
    Ok(None)
}
