//! Mounted snapshots of a volume in a directory: read while other processes write its branches.

use super::set::{find_in, no_snapshot, open_set, open_zone_dir};
use crate::backend::branch::BranchSet;
use crate::backend::snapshot_lock::{SnapshotLock, is_mounted};
use crate::backend::{MAIN, ZoneDir};
use crate::checkpoint::pack::{find_checkpoint, read_superblock};
use crate::device::BlockDevice;
use crate::disk::branch::FIRST_BRANCH;
use crate::disk::snapshot::Snapshot;
use crate::disk::superblock::Superblock;
use crate::error::{Error, Result};
use crate::volume::state::Volume;
use std::path::Path;
use std::sync::Arc;

/// Number of times that a checkpoint is read which a mount may be replacing.
const READS_MAX: usize = 20;

/// Opens a snapshot of a branch, `main` without a name, as a read-only volume. The branch may be mounted. Until the volume is
/// dropped, no process deletes the snapshot or the branch.
///
/// # Errors
/// `Usage` if there is no such branch or snapshot. `Unsupported` if the volume is not a directory of zone files.
pub fn mount_snapshot(dir: &Path, branch: Option<&str>, name: &str) -> Result<Volume> {
    let set = open_set(dir)?;
    let _held = set.lock()?;
    let (number, dev) = open_branch(&set, branch)?;
    let sb = read_superblock(&dev)?;
    let snapshot = find_snapshot(&dev, &sb, name)?;
    // All zones of the snapshot exist at this moment.
    let listed = dev.list_zones();
    listed.map_err(|e| Error::io(e, dir.display()))?;
    let lock = SnapshotLock::take(&set, number, snapshot.version)?;
    let mut volume = Volume::of_snapshot(Arc::new(dev), sb, &snapshot);
    volume.snapshots.lock = lock;
    Ok(volume)
}

/// Returns whether a process has a snapshot open with [`mount_snapshot`].
///
/// # Errors
/// Those of [`mount_snapshot`].
pub fn is_snapshot_mounted(dir: &Path, branch: Option<&str>, name: &str) -> Result<bool> {
    let set = open_set(dir)?;
    let _held = set.lock()?;
    let (number, dev) = open_branch(&set, branch)?;
    let snapshot = find_snapshot(&dev, &read_superblock(&dev)?, name)?;
    is_mounted(&set, number, Some(snapshot.version))
}

/// Opens a branch, `main` without a name, for reading and without its lock. Returns its number, too.
fn open_branch(set: &BranchSet, name: Option<&str>) -> Result<(u64, ZoneDir)> {
    let entry = find_in(&set.list()?, name.unwrap_or(MAIN))?;
    let number = entry.as_ref().map_or(FIRST_BRANCH, |entry| entry.number);
    Ok((number, open_zone_dir(set, entry.as_ref(), None)?))
}

fn find_snapshot(dev: &dyn BlockDevice, sb: &Superblock, name: &str) -> Result<Snapshot> {
    let mut reads = 0;
    let found = loop {
        reads += 1;
        match find_checkpoint(dev, sb, false) {
            // A mount of the branch may have replaced it meanwhile.
            Err(Error::Corrupt(_)) if reads < READS_MAX => {}
            Ok(found) if found.damage.body && reads < READS_MAX => {}
            found => break found?,
        }
    };
    let mut snapshots = found.body.snapshots.into_iter();
    let found = snapshots.find(|snapshot| snapshot.name == name);
    found.ok_or_else(|| no_snapshot(name))
}
