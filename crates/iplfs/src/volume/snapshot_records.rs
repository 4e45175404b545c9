//! Records of the snapshots of a volume.

use crate::backend::snapshot_lock::SnapshotLock;
use crate::disk::snapshot::Snapshot;
use crate::log::dead_blocks::DeadBlocks;
use std::collections::HashMap;
use std::sync::{Arc, Weak};

/// Snapshots of a volume, and which of them are open.
#[derive(Default)]
pub(crate) struct Snapshots {
    /// Records of snapshots, oldest first.
    pub(crate) records: Vec<Snapshot>,
    /// Number of dead blocks that are kept because a snapshot refers to them.
    pub(crate) held_blocks: u64,
    /// Blocks that died and are kept since the release of a state began.
    pub(crate) died_meanwhile: Option<DeadBlocks>,
    /// Tokens of open snapshots, by name.
    pub(crate) open: HashMap<String, Weak<()>>,
    /// Token of the volume itself, if it is an open snapshot of another.
    pub(crate) token: Option<Arc<()>>,
    /// Lock of the volume itself, if it is a mounted snapshot.
    pub(crate) lock: Option<SnapshotLock>,
}

impl Snapshots {
    /// Position of the snapshot `name`.
    pub(crate) fn position(&self, name: &str) -> Option<usize> {
        self.records
            .iter()
            .position(|snapshot| snapshot.name == name)
    }

    /// Returns whether the snapshot `name` is open.
    pub(crate) fn is_open(&self, name: &str) -> bool {
        self.open
            .get(name)
            .is_some_and(|token| token.strong_count() > 0)
    }

    /// Returns the token that keeps the snapshot `name` open.
    pub(crate) fn open_token(&mut self, name: &str) -> Arc<()> {
        let token = self.open.get(name).and_then(Weak::upgrade);
        let token = token.unwrap_or_default();
        self.open.insert(name.to_owned(), Arc::downgrade(&token));
        token
    }
}
