//! A checkpoint under way, and what changed since the last one.

use crate::disk::address::Nid;
use crate::disk::checkpoint::{Phase, Seal};
use crate::log::invalid::DeadMap;
use std::collections::HashSet;
use std::ops::Range;

/// A checkpoint that is under way beside the volume's work, by its version.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Checkpoint(pub(crate) u64);

/// A checkpoint whose body is written.
pub(crate) struct Begun {
    pub(crate) phase: Phase,
    pub(crate) seal: Seal,
    /// What the body took beyond its pack.
    pub(crate) overflow: Range<u64>,
    /// All that died since the last checkpoint.
    pub(crate) died: DeadMap,
    /// What happened since then.
    pub(crate) since: Since,
    pub(crate) sealed: bool,
}

/// What happened since the last checkpoint that decides whether an fsync can leave its work to roll-forward.
#[derive(Default)]
pub(crate) struct Since {
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

impl Since {
    /// Takes in what happened before it: there was no checkpoint between.
    pub(crate) fn absorb(&mut self, earlier: Self) {
        self.created.extend(earlier.created);
        self.renamed.extend(earlier.renamed);
        self.vacated.extend(earlier.vacated);
        self.directory_moved |= earlier.directory_moved;
        self.groups += earlier.groups;
    }
}
