//! State of a volume under repair, and the order of the passes.

use crate::check::{CheckOptions, Report, check, name_paths};
use crate::disk::address::Nid;
use crate::disk::dentry::Dentry;
use crate::disk::inode::Time;
use crate::disk::nat::NatEntry;
use crate::error::Result;
use crate::finding::Finding;
use crate::options::DiscardMode;
use crate::vfs::dir::EntryPosition;
use crate::volume::state::Volume;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;

/// Result of a repair.
#[derive(Clone, Debug)]
pub struct Repaired {
    /// Changes that were made, in order.
    pub done: Vec<Finding>,
    /// Set if the newest committed checkpoint may be lost, and an older one was used.
    pub fallback: Option<CheckpointFallback>,
    /// Report of the check after the repair.
    pub left: Report,
}

/// Use of the checkpoint before the newest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckpointFallback {
    /// Version of the unreadable checkpoint. If only its seals are unreadable, a crash may have interrupted it.
    pub lost: u64,
    /// Version of the checkpoint that was used.
    pub used: u64,
    /// Time of the last change in it.
    pub changed: Time,
}

/// Directory of inodes whose names are lost.
pub(super) const LOST_FOUND: &[u8] = b"lost+found";

/// Volume under repair, with the knowledge of all passes.
pub(super) struct Salvage {
    pub(super) v: Volume,
    pub(super) table: BTreeMap<Nid, NatEntry>,
    /// Nodes by the position that they state: inode, level and ordinal. Used where the upper nodes are lost.
    pub(super) places: HashMap<Nid, BTreeMap<(u8, u32), Nid>>,
    pub(super) done: Vec<Finding>,
    /// Positions in `done`, and the inodes they concern.
    pub(super) about: Vec<(usize, Nid)>,
    /// Verify the checksums of data.
    pub(super) data: bool,
    /// Set if the table was rebuilt from the logs and may contain deleted inodes.
    pub(super) stale: bool,
    /// Inodes found again in the logs that may exist only for a snapshot.
    pub(super) doubtful: BTreeSet<Nid>,
    /// Doubtful inodes that may be an older version, with the version of their checkpoint.
    pub(super) old: BTreeMap<Nid, u64>,
    /// Lost checkpoint, and the one that is used.
    pub(super) fallback: Option<(u64, u64)>,
    /// Set if a directory lost entries.
    pub(super) entries_lost: bool,
    pub(super) now: Time,
    pub(super) claimed: HashSet<u64>,
    pub(super) kept: BTreeSet<Nid>,
    pub(super) inos: BTreeSet<Nid>,
    /// Inodes whose node cannot be read.
    pub(super) damaged: BTreeSet<Nid>,
    /// Inodes that lack data.
    pub(super) incomplete: HashSet<Nid>,
    pub(super) live: u64,
    /// Names of every inode: directory and name.
    pub(super) names: BTreeMap<Nid, Vec<(Nid, Vec<u8>)>>,
}

/// Entry with its directory and position.
pub(super) type FoundDirEntry = (Nid, EntryPosition, Dentry);

impl Salvage {
    pub(super) fn new(
        v: Volume,
        table: BTreeMap<Nid, NatEntry>,
        done: Vec<Finding>,
        now: Time,
    ) -> Self {
        Self {
            v,
            table,
            places: HashMap::new(),
            done,
            about: Vec::new(),
            data: false,
            stale: false,
            doubtful: BTreeSet::new(),
            old: BTreeMap::new(),
            fallback: None,
            entries_lost: false,
            now,
            claimed: HashSet::new(),
            kept: BTreeSet::new(),
            inos: BTreeSet::new(),
            damaged: BTreeSet::new(),
            incomplete: HashSet::new(),
            live: 0,
            names: BTreeMap::new(),
        }
    }

    pub(super) fn run(mut self) -> Result<Repaired> {
        self.repair_maps()?;
        self.repair_snapshots()?;
        let fallback = self.newest_change()?;
        self.recount()?;
        self.ensure_root()?;
        let mut entries = self.read_entries()?;
        self.drop_deleted(&mut entries)?;
        self.filter_entries(entries)?;
        self.break_cycles()?;
        self.reattach()?;
        self.repair_link_counts()?;
        self.v.evict_orphans();
        self.v.checkpoint_whole_table()?;
        self.report_old_versions()?;
        let requested = self.about.iter().map(|(_, ino)| *ino).collect();
        let paths = self.v.paths_of(&requested);
        name_paths(&mut self.done, &self.about, &paths);
        self.finish(fallback)
    }

    /// Finds the time of the last change in the checkpoint that was used.
    pub(super) fn newest_change(&mut self) -> Result<Option<CheckpointFallback>> {
        let Some((lost, used)) = self.fallback else {
            return Ok(None);
        };
        let mut changed = Time { sec: 0, nsec: 0 };
        for ino in self.inos.clone() {
            let ctime = self.v.inode(ino)?.ctime;
            if (ctime.sec, ctime.nsec) > (changed.sec, changed.nsec) {
                changed = ctime;
            }
            self.v.shrink_caches();
        }
        Ok(Some(CheckpointFallback {
            lost,
            used,
            changed,
        }))
    }

    /// Reports directories found in a version that a snapshot holds: a newer version may have existed.
    pub(super) fn report_old_versions(&mut self) -> Result<()> {
        for (ino, tag) in std::mem::take(&mut self.old) {
            if self.inos.contains(&ino) && self.v.inode(ino).is_ok_and(|inode| inode.is_dir()) {
                let place = format_args!("directory {ino}").to_string();
                let what = format!(
                    "was found in the version of a snapshot, written after checkpoint {tag}; later changes of names are lost"
                );
                self.note_in(ino, place, what);
            }
        }
        Ok(())
    }

    pub(super) fn note(&mut self, place: impl fmt::Display, what: impl fmt::Display) {
        self.done.push(Finding {
            place: place.to_string(),
            what: what.to_string(),
        });
    }

    /// Records a change, with the path that the inode has at the end.
    pub(super) fn note_in(&mut self, ino: Nid, place: impl fmt::Display, what: impl fmt::Display) {
        self.about.push((self.done.len(), ino));
        self.note(place, what);
    }

    /// Releases blocks that are not needed, after the device is consistent, and checks the result.
    pub(super) fn finish(self, fallback: Option<CheckpointFallback>) -> Result<Repaired> {
        let Self {
            mut v, mut done, ..
        } = self;
        let dev = v.dev.clone();
        let report = check(&dev, CheckOptions::default())?;
        for run in report.leaked {
            v.dead.insert_range(run);
        }
        v.needs_trim = false;
        v.options.discard = DiscardMode::Eager;
        v.checkpoint.has_changes = true;
        // Otherwise the next mount claims what the repair used.
        let _ = v.join_claims();
        v.drain()?;
        let foreign = v.clear_past_heads()?;
        if foreign > 0 {
            done.push(Finding {
                place: "device".to_string(),
                what: format!("{foreign} unowned blocks past the heads of the logs; released"),
            });
        }
        v.release_all_zones()?;
        v.unmount()?;
        let left = check(&dev, CheckOptions::default())?;
        Ok(Repaired {
            done,
            fallback,
            left,
        })
    }
}
