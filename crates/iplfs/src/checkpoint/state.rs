//! State of the checkpoint in progress, and the changes since the last one.

use crate::disk::address::Nid;
use crate::disk::checkpoint::{Phase, Seal};
use crate::log::dead_blocks::DeadBlocks;
use std::collections::HashSet;
use std::ops::Range;

/// Checkpoint in progress, identified by its version. Other operations may run meanwhile.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Checkpoint(pub(crate) u64);

/// Checkpoint whose body is written and which is not durable yet.
pub(crate) struct CheckpointInProgress {
    pub(crate) phase: Phase,
    pub(crate) seal: Seal,
    /// Blocks of the body that lie outside its pack.
    pub(crate) overflow: Range<u64>,
    /// Blocks that died since the last checkpoint.
    pub(crate) died: DeadBlocks,
    /// Changes since the last checkpoint.
    pub(crate) changes: UncommittedChanges,
    pub(crate) sealed: bool,
}

/// Newest committed checkpoint, and the one in progress.
#[derive(Default)]
pub(crate) struct CheckpointState {
    /// Version of the newest committed checkpoint.
    pub(crate) version: u64,
    /// Pack that holds it, 0 or 1.
    pub(crate) pack: usize,
    /// Highest version that the device had at the mount, or that was sealed since.
    pub(crate) newest: u64,
    /// Checksum of its body.
    pub(crate) body_crc: u32,
    /// Blocks of its body that lie outside its pack.
    pub(crate) overflow: Range<u64>,
    /// Checkpoint in progress, if there is one.
    pub(crate) in_progress: Option<CheckpointInProgress>,
    /// Set after a failure that left unknown bytes on the device. Only a complete checkpoint makes the state durable
    /// then.
    pub(crate) is_required: bool,
    /// Set by every change since the last checkpoint, or since the one in progress began.
    pub(crate) has_changes: bool,
}

/// Numbers that roll-forward recovery depends on, and the changes it could not replay.
pub(crate) struct RollForwardState {
    /// Tag of the nodes that roll-forward accepts.
    pub(crate) tag: u64,
    /// Sequence number of the next node.
    pub(crate) next_seq: u64,
    /// `next_seq` at the last checkpoint.
    pub(crate) base_seq: u64,
    pub(crate) changes: UncommittedChanges,
}

impl Default for RollForwardState {
    fn default() -> Self {
        Self {
            tag: 0,
            next_seq: 1,
            base_seq: 1,
            changes: UncommittedChanges::default(),
        }
    }
}

/// Changes since the last checkpoint that roll-forward could not replay. They decide whether an fsync needs a
/// checkpoint.
#[derive(Default)]
pub(crate) struct UncommittedChanges {
    /// Inodes that were created.
    pub(crate) created: HashSet<Nid>,
    /// Inodes whose names changed after their creation.
    pub(crate) renamed: HashSet<Nid>,
    /// Names that an inode lost while keeping another. Roll-forward must not give such a name to another file: it
    /// would drop the only name under which the older checkpoint knows the first inode.
    pub(crate) vacated: HashSet<(Nid, Vec<u8>)>,
    /// Set if a directory was moved.
    pub(crate) directory_moved: bool,
    /// Number of fsyncs left to roll-forward.
    pub(crate) groups: u64,
}

impl UncommittedChanges {
    /// Adds changes that happened earlier, without a checkpoint in between.
    pub(crate) fn absorb(&mut self, earlier: Self) {
        self.created.extend(earlier.created);
        self.renamed.extend(earlier.renamed);
        self.vacated.extend(earlier.vacated);
        self.directory_moved |= earlier.directory_moved;
        self.groups += earlier.groups;
    }
}
