//! Branch of the device: its parent, its children and its regions.

use super::files::ZoneDir;
use super::own_branch::OwnBranch;
use crate::backend::branch::{BranchSet, EntryState};
use crate::backend::snapshot_lock::is_mounted;
use crate::backend::space;
use crate::device::{BlockDevice, BranchDevice, Child};
use crate::disk::branch::{FIRST_BRANCH, ForkPoint, Layout, REGION_BITS};
use crate::error::{Error, Result};
use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

impl BranchDevice for ZoneDir {
    fn directory(&self) -> &Path {
        &self.path
    }

    fn number(&self) -> u64 {
        self.branch.number
    }

    fn origin(&self) -> Option<&ForkPoint> {
        self.branch.origin.as_ref()
    }

    fn parent(&self) -> Result<Arc<dyn BlockDevice>> {
        let OwnBranch { set, number, .. } = &self.branch;
        let entries = set.list()?;
        let own = entries.iter().find(|entry| entry.number == *number);
        let of = own.filter(|own| own.number != FIRST_BRANCH);
        let parent = of.and_then(|own| entries.iter().find(|other| other.number == own.parent));
        let parent = parent.ok_or_else(|| {
            Error::corrupt(
                format_args!("branch number {number}"),
                "the branch from which it was forked is missing",
            )
        })?;
        let io = |e| Error::io(e, self.path.display());
        let dev = Self::open_entry(&self.path, Some(parent), None).map_err(io)?;
        dev.list_zones().map_err(io)?;
        Ok(Arc::new(dev))
    }

    fn layout(&self) -> Option<Layout> {
        self.branch.layout.get().copied()
    }

    fn divide(&self, layout: Layout) {
        let _ = self.branch.layout.set(layout);
    }

    fn region_end(&self, offset: u64) -> Option<u64> {
        let layout = self.branch.layout.get()?;
        Some(layout.first.max((offset >> REGION_BITS) + 1) << REGION_BITS)
    }

    fn take_region(&self) -> Result<u64> {
        let taken = self.add_regions(|set| Ok(BTreeSet::from([set.take_region()?])))?;
        Ok(taken.first().copied().unwrap_or_default() << REGION_BITS)
    }

    fn own_regions(&self, mut regions: BTreeSet<u64>) -> Result<()> {
        let branch = &self.branch;
        let Some(layout) = branch.layout.get() else {
            return Ok(());
        };
        regions.retain(|region| match *region < layout.first {
            true => branch.number != FIRST_BRANCH,
            false => *region != branch.number && !branch.regions().contains(region),
        });
        if regions.is_empty() {
            return Ok(());
        }
        let take = |set: &BranchSet| set.take_regions_at(&regions).map(|()| regions.clone());
        self.add_regions(take).map(drop)
    }

    fn children(&self) -> Result<Vec<Child>> {
        if self.branch.layout.get().is_none() {
            return Ok(Vec::new());
        }
        let entries = self.branch.list_children()?;
        let children = entries.iter().map(|entry| Child {
            number: entry.number,
            version: entry.version,
            is_dead: entry.state == EntryState::Dead,
        });
        Ok(children.collect())
    }

    fn fork_point(&self, child: u64) -> Result<Option<ForkPoint>> {
        let listed = self.branch.listed();
        let listed = listed.iter().find(|entry| entry.number == child).cloned();
        if let Some(Ok(record)) = listed.map(|entry| self.branch.set.record(&entry)) {
            return Ok(record.origin);
        }
        // It has another name since.
        let Some(entry) = self.branch.set.numbered(child)? else {
            return Ok(None);
        };
        match (self.branch.set.record(&entry), &entry.state) {
            // The record goes last: nothing is pinned any longer.
            (Err(Error::Io(e, _)), EntryState::Dead) if e.kind() == io::ErrorKind::NotFound => {
                Ok(None)
            }
            // A fork that was killed before its record was durable pins nothing.
            (Err(Error::Io(e, _)), EntryState::New) if e.kind() == io::ErrorKind::NotFound => {
                Ok(None)
            }
            (Err(Error::Corrupt(_)), EntryState::New) => Ok(None),
            (record, _) => Ok(record?.origin),
        }
    }

    fn lock_snapshot(&self, version: u64) -> Result<Option<File>> {
        let (set, number) = (&self.branch.set, self.branch.number);
        let held = set.lock()?;
        Ok((!is_mounted(set, number, Some(version))?).then_some(held))
    }

    fn forget_child(&self, child: u64) -> Result<()> {
        match self.branch.set.numbered(child)? {
            Some(entry) if entry.state == EntryState::Dead => {
                match self.branch.set.remove_content(&entry) {
                    Err(Error::Io(e, _)) if e.kind() == io::ErrorKind::NotFound => {}
                    other => other?,
                }
                // Otherwise a branch that finds no space does it.
                let _ = space::forget(&self.branch.set, child);
                self.branch.set.forget(&entry)
            }
            _ => Ok(()),
        }
    }
}

impl ZoneDir {
    /// Takes regions for the branch, and records them.
    fn add_regions(
        &self,
        take: impl FnOnce(&BranchSet) -> Result<BTreeSet<u64>>,
    ) -> Result<BTreeSet<u64>> {
        let set = &self.branch.set;
        let found = set.numbered(self.branch.number)?;
        let entry =
            found.ok_or_else(|| Error::corrupt("branches", "the open branch is missing"))?;
        let _held = set.lock_counter()?;
        let regions = take(set)?;
        let mut record = set.record(&entry)?;
        record.regions.extend(&regions);
        set.write_record(&entry, &record)?;
        self.branch.regions().extend(&regions);
        Ok(regions)
    }
}
