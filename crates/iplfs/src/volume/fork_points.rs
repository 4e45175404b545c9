//! Fork points: states of a branch that its forks read.
//!
//! ```text
//!  origin ─── snapshot ─── fork point ─── snapshot ─── present        one branch, by age
//!  └ blocks below its heads belong to other branches
//! ```
//!
//! A fork point is held like a snapshot: a block that dies below the heads of the newest one is kept. It is pinned by
//! the directory of the child and is not in the checkpoint, so that the number of forks costs no `fsync` anything.
//! The checkpoint names the child whose fork point it released last: until the directory of that child is gone, its
//! fork point must not be released again.
//!
//! A fork that is being made holds blocks in a list of its own. The next checkpoint makes its pin durable first, or
//! gives the blocks up. So no checkpoint counts blocks as held that nothing holds after a crash.

use crate::disk::address::BlockAddr;
use crate::error::Result;
use crate::log::dead_blocks::DeadBlocks;
use std::sync::Arc;

/// Fork that is being made.
pub(crate) trait PinFork: Send + Sync {
    /// Makes the pin durable, if it is not yet.
    fn pin(&self) -> Result<()>;

    /// The state of the fork is committed: the pin may be made.
    fn committed(&self);

    /// The state of the fork will never be committed: the pin must not be made.
    fn abandon(&self);
}

/// Fork whose pin is not known to be durable.
pub(crate) struct PendingFork {
    pub(crate) pin: Arc<dyn PinFork>,
    /// Checkpoint that holds the fork point.
    pub(crate) version: u64,
    pub(crate) heads: [u64; 7],
    /// Blocks that died since, and that only this fork holds.
    pub(crate) held: DeadBlocks,
}

/// Fork points of a branch, its own origin included.
#[derive(Default)]
pub(crate) struct ForkPoints {
    /// Heads of the origin. Blocks below them belong to other branches.
    pub(crate) origin: Option<[u64; 7]>,
    /// Number of live blocks that belong to other branches.
    pub(crate) shared_blocks: u64,
    /// Child whose fork point was released last, 0 if none was.
    pub(crate) released: u64,
    /// Heads of the newest fork point.
    pub(crate) newest: Option<[u64; 7]>,
    /// Set if deleted children were found at the mount.
    pub(crate) has_dead: bool,
    pub(crate) pending: Option<PendingFork>,
}

impl ForkPoints {
    /// Holds a block for the pending fork. Returns false if it was held already.
    pub(crate) fn hold(&mut self, addr: BlockAddr) -> bool {
        let pending = self.pending.as_mut();
        pending.is_none_or(|pending| pending.held.insert(addr))
    }

    /// Number of blocks that the pending fork holds.
    pub(crate) fn pending_blocks(&self) -> u64 {
        self.pending
            .as_ref()
            .map_or(0, |pending| pending.held.blocks())
    }

    /// Records that a checkpoint was committed.
    pub(crate) fn committed(&self, version: u64) {
        if let Some(pending) = self.pending.as_ref().filter(|p| p.version <= version) {
            pending.pin.committed();
        }
    }
}

/// State that holds blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Holder {
    /// Snapshot, by its index.
    Snapshot(usize),
    /// Fork point, by the number of the child.
    Fork(u64),
}
