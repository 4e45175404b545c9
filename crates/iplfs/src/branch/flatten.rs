//! Flattening: making a branch independent of its parent.
//!
//! ```text
//!  copies ► checkpoint of the branch ► pin of the fork point ► directory of the branch without parent ► pin deleted
//!  └──── lock of the branch ─────────────────────────────────── commit point ────────┘
//! ```
//!
//! The pin is the directory of a fork that is never finished. So the parent releases the fork point as it does after the
//! deletion of a child, also if it is mounted. A killed call leaves an unfinished fork.

use super::set::{clean, find, mount, open_device, open_set, sweep};
use crate::backend::branch::{BranchSet, Entry, EntryState};
use crate::disk::branch::BranchRecord;
use crate::error::{Error, Result};
use crate::volume::fork_points::Holder;
use crate::volume::state::Volume;
use std::path::Path;

/// Makes a branch that is not mounted independent of its parent: writes every block again that it shares with other
/// branches. The parent then releases what only the fork point held. Returns the number of copied blocks, `None` if the
/// branch has no parent. `progress` gets the number of copied blocks and their total. A killed call may be repeated, and
/// continues.
///
/// # Errors
/// `Io` with `ResourceBusy` if the branch is mounted. `Usage` if there is no such branch, or a snapshot or fork of it
/// refers to blocks of other branches. `Limit` if the copies do not fit the volume, its host or the address space.
pub fn flatten_branch(
    dir: &Path,
    name: &str,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Option<u64>> {
    let set = open_set(dir)?;
    let held = set.lock()?;
    clean(&set)?;
    let Some(entry) = find(&set, name)?.filter(Entry::has_parent) else {
        return Ok(None);
    };
    // It holds the lock of the branch until the end. Other branches can be opened and changed meanwhile.
    let dev = open_device(&set, Some(&entry), Some(false))?;
    drop(held);
    let mut volume = mount(&dev)?;
    let copied = require_unshared(&set, &mut volume, name).and_then(|()| volume.flatten(progress));
    let ended = volume.unmount();
    let copied = copied?;
    ended?;
    let _held = set.lock()?;
    release_parent(&set, &entry)?;
    drop(dev);
    sweep(&set)?;
    Ok(Some(copied))
}

/// Fails if a snapshot or fork point of a branch refers to blocks of other branches.
fn require_unshared(set: &BranchSet, volume: &mut Volume, name: &str) -> Result<()> {
    let Some(heads) = volume.fork_points.origin else {
        return Ok(());
    };
    for (_, holder) in volume.holders()? {
        let shares = match volume.state_of(holder)? {
            Some(mut state) => state.refers_below(&heads)?,
            None => false,
        };
        if !shares {
            continue;
        }
        return Err(Error::Usage(match holder {
            Holder::Snapshot(at) => format!(
                "snapshot '{}' of branch '{name}' needs blocks of its parent: delete it first",
                volume.snapshots.records[at].name
            ),
            Holder::Fork(child) => match set.numbered(child)?.as_ref().and_then(Entry::name) {
                Some(fork) => format!(
                    "branch '{fork}', a fork of '{name}', needs blocks of the parent of '{name}': flatten or delete '{fork}' first"
                ),
                None => format!(
                    "a deleted fork of '{name}' has forks that need blocks of the parent of '{name}': flatten or delete those of number {child} first"
                ),
            },
        }));
    }
    Ok(())
}

/// Takes the parent from a branch that refers to no block of it, and hands the fork point to a deleted child. The caller
/// holds the locks of the set and of the branch.
fn release_parent(set: &BranchSet, entry: &Entry) -> Result<()> {
    let record = set.record(entry)?;
    let (pin, _lock) = set.create((entry.parent, entry.version), None, |number, _| {
        let record = BranchRecord {
            number,
            regions: Vec::new(),
            ..record
        };
        Ok((record, Vec::new()))
    })?;
    set.pin()?;
    set.drop_parent(entry)?;
    set.set_state(&pin, EntryState::Dead).map(drop)
}
