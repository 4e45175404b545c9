//! A checkpoint under way, and what changed since the last one.

use crate::disk::address::Nid;
use crate::disk::checkpoint::{Phase, Seal};
use crate::log::dead_blocks::DeadBlocks;
use std::collections::HashSet;
use std::ops::Range;

/// A checkpoint that is under way beside the volume's work, by its version.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Checkpoint(pub(crate) u64);

/// A checkpoint whose body is written.
pub(crate) struct CheckpointInProgress {
    pub(crate) phase: Phase,
    pub(crate) seal: Seal,
    /// What the body took beyond its pack.
    pub(crate) overflow: Range<u64>,
    /// All that died since the last checkpoint.
    pub(crate) died: DeadBlocks,
    /// What happened since then.
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
    /// Checksum of its body.
    pub(crate) body_crc: u32,
    /// Blocks of its body that lie outside its pack.
    pub(crate) overflow: Range<u64>,
    /// Checkpoint whose body is written and which is not durable yet.
    pub(crate) in_progress: Option<CheckpointInProgress>,
    /// Set after a failure that left unknown bytes on the device: only a complete checkpoint makes the state durable.
    pub(crate) is_required: bool,
    /// Something changed since the last checkpoint, or since the one in progress began.
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

/// What happened since the last checkpoint that decides whether an fsync can leave its work to roll-forward.
#[derive(Default)]
pub(crate) struct UncommittedChanges {
    /// Inodes created.
    pub(crate) created: HashSet<Nid>,
    /// Inodes whose names changed other than by their creation.
    pub(crate) renamed: HashSet<Nid>,
    /// Names given up by an inode that lives on. Roll-forward must not put another file there: it would drop the only name
    /// under which the older checkpoint knows that inode.
    pub(crate) vacated: HashSet<(Nid, Vec<u8>)>,
    /// A directory changed its place.
    pub(crate) directory_moved: bool,
    /// Fsyncs left to roll-forward.
    pub(crate) groups: u64,
}

impl UncommittedChanges {
    /// Takes in what happened before it: there was no checkpoint between.
    pub(crate) fn absorb(&mut self, earlier: Self) {
        self.created.extend(earlier.created);
        self.renamed.extend(earlier.renamed);
        self.vacated.extend(earlier.vacated);
        self.directory_moved |= earlier.directory_moved;
        self.groups += earlier.groups;
    }
}
