//! Device as a set of zone files, which are opened when they are needed.

use super::own_branch::{OwnBranch, zone_name};
use crate::backend::host::{open_regular, retry, write_in_place};
use crate::disk::branch::FIRST_BRANCH;
use rustix::fs::{AtFlags, StatxFlags, statx};
use rustix::io::retry_on_intr;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Maximum number of open zone files.
const OPEN_MAX: usize = 128;

/// Device in a directory of zone files.
pub struct ZoneDir {
    pub(super) path: PathBuf,
    pub(super) zones_path: PathBuf,
    /// Open for its lock, which earlier versions look for.
    pub(super) _header: Option<File>,
    /// Directory of zone files; holds the lock.
    pub(super) zones_dir: File,
    /// Headers that are damaged or missing.
    pub(super) damaged: Mutex<Vec<&'static str>>,
    pub(super) zone_blocks: u64,
    pub(super) read_only: bool,
    pub(super) can_punch: bool,
    pub(super) branch: OwnBranch,
    pub(super) state: Mutex<ZoneFiles>,
    /// Held by the flush in progress: a second flush must not find the files clean and return early. True after a
    /// failed flush.
    pub(super) flushing: Mutex<bool>,
}

/// Place of a zone.
#[derive(PartialEq, Eq)]
enum Owner {
    Own(PathBuf),
    Other(PathBuf),
}

#[derive(Default)]
pub(super) struct ZoneFiles {
    /// Own zones that have a file.
    pub(super) zones: BTreeSet<u64>,
    pub(super) open: BTreeMap<u64, Arc<File>>,
    /// Files changed since the last flush.
    pub(super) dirty: BTreeMap<u64, Arc<File>>,
    /// Set if files were created or removed since the last flush.
    pub(super) names_dirty: bool,
    /// Other directories in which files were created or removed since the last flush.
    pub(super) dirs_dirty: BTreeSet<PathBuf>,
}

impl ZoneDir {
    /// Finds the zones of the branch again, which another process may have changed.
    pub(crate) fn list_zones(&self) -> io::Result<()> {
        let zones = self.branch.zones(&self.zones_path)?;
        self.lock_state().zones = zones;
        Ok(())
    }

    pub(super) fn lock_state(&self) -> MutexGuard<'_, ZoneFiles> {
        // Every change below is a single insertion or removal, so a panic elsewhere leaves the state intact.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Directory of the file of a zone, and whether the branch owns it.
    fn owner(&self, zone: u64) -> Owner {
        let branch = &self.branch;
        let Some(layout) = branch.layout.get() else {
            return Owner::Own(self.zones_path.clone());
        };
        let is_first = branch.number == FIRST_BRANCH;
        match layout.region(zone.saturating_mul(self.zone_blocks)) {
            Some(region) if region >= layout.first => {
                let path = branch.set.region_path(region);
                match region == branch.number || branch.regions().contains(&region) {
                    true => Owner::Own(path),
                    false => Owner::Other(path),
                }
            }
            _ if is_first => Owner::Own(self.zones_path.clone()),
            _ => Owner::Other(self.zones_path.clone()),
        }
    }

    /// Opens the file of a zone of another branch, which never changes below what this branch refers to.
    fn foreign_file(&self, zone: u64, dir: &Path) -> io::Result<Option<Arc<File>>> {
        let mut state = self.lock_state();
        if let Some(file) = state.open.get(&zone) {
            return Ok(Some(file.clone()));
        }
        let path = dir.join(zone_name(zone));
        let file = match open_regular(&path, OpenOptions::new().read(true)) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => Arc::new(file?),
        };
        if state.open.len() >= OPEN_MAX {
            state.open.pop_first();
        }
        state.open.insert(zone, file.clone());
        Ok(Some(file))
    }

    /// Returns the file of a zone. Without `make`, `None` if there is no such file. With `make`, the zone must be one
    /// of the branch.
    pub(super) fn file(&self, zone: u64, make: bool) -> io::Result<Option<Arc<File>>> {
        let dir = match self.owner(zone) {
            Owner::Own(dir) => dir,
            Owner::Other(dir) if !make => return self.foreign_file(zone, &dir),
            Owner::Other(_) => {
                let what = format!("zone {zone:#x} belongs to another branch");
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, what));
            }
        };
        let mut state = self.lock_state();
        let file = match state.open.get(&zone) {
            Some(file) => file.clone(),
            None => {
                let exists = state.zones.contains(&zone);
                if !exists && !make {
                    return Ok(None);
                }
                if !exists && dir != self.zones_path && !dir.is_dir() {
                    retry(|| fs::create_dir_all(&dir))?;
                    state.dirs_dirty.insert(self.branch.set.regions_path());
                    state.dirs_dirty.insert(self.path.clone());
                    write_in_place(&File::open(&dir)?);
                }
                let mut options = OpenOptions::new();
                options.read(true).write(!self.read_only);
                // Not `create_new`: a crash may have left a file that is not in the list.
                options.create(make && !exists).truncate(false);
                let path = dir.join(zone_name(zone));
                let file = Arc::new(open_regular(&path, &mut options)?);
                if !exists {
                    state.zones.insert(zone);
                    self.name_changed(&mut state, dir);
                }
                if state.open.len() >= OPEN_MAX {
                    state.open.pop_first();
                }
                state.open.insert(zone, file.clone());
                file
            }
        };
        if make {
            state.dirty.insert(zone, file.clone());
        }
        Ok(Some(file))
    }

    /// Fails if another process removed the file of a zone: data written to it would be lost. Only the link count is
    /// queried. Querying timestamps makes Linux 6.13 and later give the next change a new timestamp, which is one
    /// more block to write at each flush.
    pub(super) fn has_name(&self, zone: u64, file: &File) -> io::Result<()> {
        let ask = || statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::NLINK);
        let names = retry_on_intr(ask)?.stx_nlink;
        let ours_to_remove = self.lock_state();
        if names == 0 && ours_to_remove.zones.contains(&zone) {
            let what = format!("zones/{} was removed by another process", zone_name(zone));
            return Err(io::Error::new(io::ErrorKind::NotFound, what));
        }
        Ok(())
    }

    /// Splits a range of addresses at zone boundaries: zone, and blocks inside it.
    pub(super) fn pieces(
        &self,
        blocks: Range<u64>,
    ) -> impl Iterator<Item = (u64, Range<u64>)> + use<> {
        let size = self.zone_blocks;
        let mut at = blocks.start;
        std::iter::from_fn(move || {
            if at >= blocks.end {
                return None;
            }
            let zone = at / size;
            let end = blocks.end.min((zone + 1) * size);
            let piece = (zone, at % size..end - zone * size);
            at = end;
            Some(piece)
        })
    }

    /// Returns the zones of the branch that have a file and lie in a range, and the blocks inside each.
    pub(super) fn own_pieces(&self, blocks: Range<u64>) -> Vec<(u64, Range<u64>)> {
        if blocks.start >= blocks.end {
            return Vec::new();
        }
        let size = self.zone_blocks;
        let state = self.lock_state();
        let zones = state
            .zones
            .range(blocks.start / size..=(blocks.end - 1) / size);
        zones
            .map(|zone| {
                let base = zone * size;
                let end = blocks.end.min(base + size);
                (*zone, blocks.start.max(base) - base..end - base)
            })
            .collect()
    }

    /// Notes that a file was created or removed in a directory.
    fn name_changed(&self, state: &mut ZoneFiles, dir: PathBuf) {
        if dir == self.zones_path {
            state.names_dirty = true;
        } else {
            state.dirs_dirty.insert(dir);
        }
    }
    pub(super) fn remove(&self, zone: u64) -> io::Result<()> {
        // Another branch releases its zones itself.
        let Owner::Own(dir) = self.owner(zone) else {
            return Ok(());
        };
        let mut state = self.lock_state();
        state.open.remove(&zone);
        state.dirty.remove(&zone);
        if state.zones.contains(&zone) {
            retry(|| fs::remove_file(dir.join(zone_name(zone))))?;
            state.zones.remove(&zone);
            self.name_changed(&mut state, dir);
        }
        Ok(())
    }
}
