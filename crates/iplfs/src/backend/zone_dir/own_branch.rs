//! Branch that a device shows: its number, its regions, and the file that stands for its fixed blocks.

use crate::backend::branch::{BranchSet, Entry};
use crate::backend::host::retry;
use crate::disk::branch::{BranchRecord, FIRST_BRANCH, ForkPoint, Layout};
use crate::error::Result;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// Branch that the device shows.
pub(super) struct OwnBranch {
    pub(super) set: BranchSet,
    pub(super) number: u64,
    /// Division of the address space. Unset while the volume has no branches.
    pub(super) layout: OnceLock<Layout>,
    /// State from which the branch was forked.
    pub(super) origin: Option<ForkPoint>,
    /// Regions that the branch took after its first one.
    pub(super) regions: Mutex<BTreeSet<u64>>,
    /// Superblocks and packs of a fork. Branch 0 has them in its first zone file.
    pub(super) fixed: Option<File>,
    /// Set if `fixed` was changed since the last flush.
    pub(super) fixed_dirty: AtomicBool,
    /// Entries of the children, as they were listed last.
    children: Mutex<Vec<Entry>>,
    /// Set while `children` was listed at the opening of the branch, and not used. The branch is open for writing, so no
    /// other process can fork it.
    is_listed: AtomicBool,
}

impl OwnBranch {
    pub(super) fn from_record(
        set: BranchSet,
        record: Option<BranchRecord>,
        fixed: Option<File>,
    ) -> Self {
        let layout = OnceLock::new();
        let mut branch = Self {
            set,
            number: FIRST_BRANCH,
            layout: OnceLock::new(),
            origin: None,
            regions: Mutex::default(),
            fixed,
            fixed_dirty: AtomicBool::new(false),
            children: Mutex::default(),
            is_listed: AtomicBool::new(false),
        };
        if let Some(record) = record {
            let _ = layout.set(record.layout);
            branch.number = record.number;
            branch.origin = record.origin;
            branch.regions = Mutex::new(record.regions.into_iter().collect());
        }
        Self { layout, ..branch }
    }

    pub(super) fn listed(&self) -> MutexGuard<'_, Vec<Entry>> {
        // Every change is one assignment.
        self.children.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the children of a listing that was made when the branch was opened for writing.
    pub(super) fn keep_listed(&self, entries: Vec<Entry>) {
        self.set_listed(entries);
        self.is_listed.store(true, Relaxed);
    }

    /// Lists the children, unless the listing of the opening was not used.
    pub(super) fn list_children(&self) -> Result<MutexGuard<'_, Vec<Entry>>> {
        if !self.is_listed.swap(false, Relaxed) {
            self.set_listed(self.set.list()?);
        }
        Ok(self.listed())
    }

    fn set_listed(&self, mut entries: Vec<Entry>) {
        entries.retain(|entry| entry.is_child_of(self.number));
        *self.listed() = entries;
    }

    pub(super) fn regions(&self) -> MutexGuard<'_, BTreeSet<u64>> {
        // Every change is one insertion.
        self.regions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lists the zones of the branch that have a file.
    pub(super) fn zones(&self, zones_path: &Path) -> io::Result<BTreeSet<u64>> {
        let mut dirs: Vec<PathBuf> = self
            .regions()
            .iter()
            .map(|r| self.set.region_path(*r))
            .collect();
        dirs.push(match self.number {
            FIRST_BRANCH => zones_path.to_owned(),
            number => self.set.region_path(number),
        });
        let mut zones = BTreeSet::new();
        for dir in dirs {
            // Restarted from the beginning: after an error the iterator ends.
            let list = || {
                let entries = fs::read_dir(&dir)?;
                entries.map(|e| e.map(|e| e.file_name())).collect()
            };
            let names: Vec<_> = match retry(list) {
                // The directory of a region is made for its first block.
                Err(e) if e.kind() == io::ErrorKind::NotFound && dir != zones_path => continue,
                names => names?,
            };
            for name in names {
                // Another spelling of the number would be a different file than the one opened for the zone.
                let zone = name
                    .to_str()
                    .and_then(|name| u64::from_str_radix(name, 16).ok())
                    .filter(|zone| name == *zone_name(*zone));
                zones.insert(zone.ok_or_else(|| {
                    let dir = dir.file_name().unwrap_or_default().display();
                    let what = format!("{dir}/{} is not a zone file", name.display());
                    io::Error::new(io::ErrorKind::InvalidData, what)
                })?);
            }
        }
        Ok(zones)
    }

    /// Block of the file `fixed` that stands for an address.
    pub(super) fn fixed_block(&self, addr: u64) -> Option<(&File, u64)> {
        let (fixed, layout) = (self.fixed.as_ref()?, self.layout.get()?);
        let spare = 7 << layout.area_bits;
        match addr {
            addr if addr < layout.fixed_blocks => Some((fixed, addr)),
            addr if addr == spare => Some((fixed, layout.fixed_blocks)),
            _ => None,
        }
    }
}

/// File name of a zone.
pub(super) fn zone_name(zone: u64) -> String {
    format!("{zone:010x}")
}
