//! Branches in a directory of zone files: their names, records, locks and regions.
//!
//! ```text
//!  DIR/branches/counter                  next free region, in two slots
//!  DIR/branches/space                    space that branches have claimed
//!  DIR/branches/NUMBER-PARENT-VERSION…   one directory per branch; its name is the only place of the branch's name
//!     …+NAME                             branch
//!     ….new                              fork that is not finished; leftover of a killed one unless `fixed` is locked
//!     ….hiding, ….hidden                 deleted branch whose fork points are in use
//!     ….dead                             deleted branch; the parent still holds its fork point
//!  DIR/branches/…/record                 regions of the branch, and the state from which it was forked
//!  DIR/branches/…/fixed                  superblocks and checkpoint packs; holds the lock of the branch
//!  DIR/regions/NNNNNNNN/                 zone files of a region that was given to a branch
//!  DIR/zones/                            zone files, superblocks and packs of branch 0; holds its lock
//! ```
//!
//! A branch that was flattened has its own number as PARENT and 0 as VERSION, like branch 0. Its record keeps the fork
//! point that it had, for a mounted parent that has listed it earlier.
//!
//! The number of a branch is that of its first region, from a counter that only grows. VERSION is the checkpoint of
//! the parent from which it was forked. A directory of a child is also what pins its fork point in the parent: the
//! names alone tell which fork points a branch has. Changes of the set of branches hold an exclusive `flock` on DIR.

use super::durable::{self, create, make_dir, remove_dir, remove_file, rename, replace, sync_dir};
use super::host::{lock, retry};
use crate::disk::branch::{
    BranchRecord, Counter, FIRST_BRANCH, Layout, RECORD_LEN_MAX, decode_renames, encode_renames,
};
use crate::error::{Error, Result};
use rustix::fs::{FlockOperation, flock};
use rustix::io::retry_on_intr;
use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Name of the branch that is mounted without a name.
pub const MAIN: &str = "main";
/// Longest name of a branch. Unit: bytes.
pub const NAME_MAX: usize = 64;
/// File with the next free region.
const COUNTER: &str = "counter";
/// File with names that branches get; it exists while they are being changed.
const RENAMES: &str = "renames";
/// File with the space that branches have claimed.
const SPACE: &str = "space";
/// Distance of the two slots of the counter. Unit: bytes.
const SLOT: u64 = 4096;

/// State of a branch, from the name of its directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum EntryState {
    New,
    Named(String),
    Hiding,
    Hidden,
    Dead,
}

impl EntryState {
    fn suffix(&self) -> String {
        match self {
            EntryState::New => ".new".to_owned(),
            EntryState::Named(name) => format!("+{name}"),
            EntryState::Hiding => ".hiding".to_owned(),
            EntryState::Hidden => ".hidden".to_owned(),
            EntryState::Dead => ".dead".to_owned(),
        }
    }
}

/// Directory of a branch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    pub(crate) number: u64,
    /// Branch from which it was forked. Branch 0 and a flattened branch name themselves.
    pub(crate) parent: u64,
    /// Checkpoint of the parent from which it was forked.
    pub(crate) version: u64,
    pub(crate) state: EntryState,
}

impl Entry {
    fn file_name(&self) -> String {
        let suffix = self.state.suffix();
        let Self {
            number,
            parent,
            version,
            ..
        } = self;
        format!("{number:08x}-{parent:08x}-{version:016x}{suffix}")
    }

    fn parse(name: &str) -> Option<Self> {
        let is_digit = |byte: &u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(byte);
        let hex = |range: std::ops::Range<usize>| {
            let digits = name.get(range)?;
            let fits = digits.as_bytes().iter().all(is_digit);
            fits.then(|| u64::from_str_radix(digits, 16).ok())?
        };
        if (name.as_bytes().get(8), name.as_bytes().get(17)) != (Some(&b'-'), Some(&b'-')) {
            return None;
        }
        let state = match name.get(34..)? {
            ".new" => EntryState::New,
            ".hiding" => EntryState::Hiding,
            ".hidden" => EntryState::Hidden,
            ".dead" => EntryState::Dead,
            other => EntryState::Named(other.strip_prefix('+')?.to_owned()),
        };
        Some(Self {
            number: hex(0..8)?,
            parent: hex(9..17)?,
            version: hex(18..34)?,
            state,
        })
    }

    pub(crate) fn name(&self) -> Option<&str> {
        match &self.state {
            EntryState::Named(name) => Some(name),
            _ => None,
        }
    }

    /// Returns whether the branch has a parent, whose blocks it may read.
    pub(crate) fn has_parent(&self) -> bool {
        self.parent != self.number
    }

    /// Returns whether the branch is a child of `parent`.
    pub(crate) fn is_child_of(&self, parent: u64) -> bool {
        self.has_parent() && self.parent == parent
    }
}

/// Region that was just taken. The caller syncs the file before it uses the region.
struct Taken {
    region: u64,
    counter: Counter,
    file: File,
    older_slot: u64,
}

impl Taken {
    /// Writes the counter into the other slot, too, so that the loss of either slot brings no number back.
    fn copy(&self) -> io::Result<()> {
        self.file
            .write_all_at(&self.counter.encode(), self.older_slot * SLOT)
    }
}

/// Directory of zone files as a set of branches.
#[derive(Clone, Debug)]
pub(crate) struct BranchSet {
    path: PathBuf,
}

/// Fails unless `name` can be the name of a branch.
pub(crate) fn check_name(name: &str) -> Result<()> {
    let fits =
        (1..=NAME_MAX).contains(&name.len()) && !name.chars().any(|c| c == '/' || c.is_control());
    match fits {
        true => Ok(()),
        false => Err(Error::Usage(format!(
            "'{}' cannot name a branch: 1 to {NAME_MAX} bytes without `/` and control characters",
            name.escape_debug()
        ))),
    }
}

fn io(e: io::Error, path: &Path) -> Error {
    Error::io(e, path.display())
}

impl BranchSet {
    pub(crate) fn at(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    fn branches(&self) -> PathBuf {
        self.path.join("branches")
    }

    pub(crate) fn regions_path(&self) -> PathBuf {
        self.path.join("regions")
    }

    pub(crate) fn region_path(&self, region: u64) -> PathBuf {
        self.regions_path().join(format!("{region:08x}"))
    }

    pub(crate) fn entry_path(&self, entry: &Entry) -> PathBuf {
        self.branches().join(entry.file_name())
    }

    pub(crate) fn fixed_path(&self, entry: &Entry) -> PathBuf {
        self.entry_path(entry).join("fixed")
    }

    /// Waits for the lock of the set, which the returned file holds.
    pub(crate) fn lock(&self) -> Result<File> {
        lock_dir(&self.path)
    }

    /// Waits for the lock of the counter and of unfinished forks.
    pub(crate) fn lock_counter(&self) -> Result<File> {
        lock_dir(&self.branches())
    }

    /// Returns the branches in the order of their numbers. Empty for a volume that was never forked.
    pub(crate) fn list(&self) -> Result<Vec<Entry>> {
        let path = self.branches();
        let names = || -> io::Result<Vec<_>> {
            let entries = fs::read_dir(&path)?;
            entries.map(|entry| entry.map(|e| e.file_name())).collect()
        };
        let names = match retry(names) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            names => names.map_err(|e| io(e, &path))?,
        };
        let mut entries = Vec::new();
        for name in names {
            if [COUNTER, RENAMES, SPACE].iter().any(|file| {
                name.to_str()
                    .is_some_and(|name| name.strip_suffix(".tmp").unwrap_or(name) == *file)
            }) {
                continue;
            }
            let Some(entry) = name.to_str().and_then(Entry::parse) else {
                return Err(Error::corrupt(
                    format_args!("branches/{}", name.display()),
                    "is not the directory of a branch",
                ));
            };
            entries.push(entry);
        }
        // A killed first fork leaves it. Until it has its name, the volume has no branches.
        entries.retain(|entry| entry.number != FIRST_BRANCH || entry.state != EntryState::New);
        entries.sort_unstable_by_key(|entry| entry.number);
        // A rename during the listing may show a directory twice.
        entries.dedup_by_key(|entry| entry.number);
        Ok(entries)
    }

    /// Returns whether the volume may have branches.
    pub(crate) fn exists(&self) -> bool {
        self.branches().exists()
    }

    /// Returns whether a killed change may have left something behind.
    pub(crate) fn has_leftovers(&self, entries: &[Entry]) -> bool {
        let left =
            |entry: &Entry| !matches!(entry.state, EntryState::Named(_) | EntryState::Hidden);
        entries.iter().any(left) || self.branches().join(RENAMES).exists()
    }

    /// Returns the entry of a branch by its number.
    pub(crate) fn numbered(&self, number: u64) -> Result<Option<Entry>> {
        Ok(self.list()?.into_iter().find(|e| e.number == number))
    }

    /// Returns the entry of a branch by its name.
    pub(crate) fn named(&self, name: &str) -> Result<Option<Entry>> {
        Ok(self.list()?.into_iter().find(|e| e.name() == Some(name)))
    }

    pub(crate) fn record(&self, entry: &Entry) -> Result<BranchRecord> {
        let path = self.entry_path(entry).join("record");
        let read = || -> io::Result<Vec<u8>> {
            let mut bytes = Vec::new();
            let file = File::open(&path)?;
            file.take(RECORD_LEN_MAX).read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        let bytes = retry(read).map_err(|e| io(e, &path))?;
        let place = |e| match e {
            Error::Corrupt(what) => Error::Corrupt(format!("{}: {what}", path.display())),
            other => other,
        };
        let record = BranchRecord::decode(&bytes).map_err(place)?;
        let version = record.origin.as_ref().map_or(0, |o| o.state.version);
        let is_lineage = (record.parent, version) == (entry.parent, entry.version);
        if record.number != entry.number || entry.has_parent() && !is_lineage {
            return Err(Error::corrupt(path.display(), "belongs to another branch"));
        }
        Ok(record)
    }

    /// Replaces the record of a branch. The caller holds the lock of the branch.
    pub(crate) fn write_record(&self, entry: &Entry, record: &BranchRecord) -> Result<()> {
        let path = self.entry_path(entry).join("record");
        replace(&path, &record.encode()).map_err(|e| io(e, &path))
    }

    /// Gives a branch another name or state, durably.
    pub(crate) fn set_state(&self, entry: &Entry, state: EntryState) -> Result<Entry> {
        let to = Entry {
            state,
            ..entry.clone()
        };
        self.rename_entry(entry, &to)?;
        Ok(to)
    }

    /// Takes the parent from a branch, durably. It refers to no block of other branches.
    pub(crate) fn drop_parent(&self, entry: &Entry) -> Result<()> {
        let to = Entry {
            parent: entry.number,
            version: 0,
            ..entry.clone()
        };
        self.rename_entry(entry, &to)
    }

    fn rename_entry(&self, from: &Entry, to: &Entry) -> Result<()> {
        let path = self.entry_path(to);
        rename(&self.entry_path(from), &path).map_err(|e| io(e, &path))?;
        self.sync_names()
    }

    /// Gives names to branches. Either all of them get their names or none does, also if the call is killed.
    pub(crate) fn rename_all(&self, names: &[(u64, String)]) -> Result<()> {
        let path = self.branches().join(RENAMES);
        replace(&path, &encode_renames(names)).map_err(|e| io(e, &path))?;
        self.finish_renames()
    }

    /// Finishes a killed [`rename_all`](Self::rename_all). The caller holds the lock of the set.
    pub(crate) fn finish_renames(&self) -> Result<()> {
        let path = self.branches().join(RENAMES);
        let bytes = match retry(|| fs::read(&path)) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            bytes => bytes.map_err(|e| io(e, &path))?,
        };
        for (number, name) in decode_renames(&bytes)? {
            let Some(entry) = self.numbered(number)? else {
                continue;
            };
            if entry.name() != Some(&name) {
                self.set_state(&entry, EntryState::Named(name))?;
            }
        }
        remove_file(&path).map_err(|e| io(e, &path))?;
        self.sync_names()
    }

    fn sync_names(&self) -> Result<()> {
        let path = self.branches();
        sync_dir(&path).map_err(|e| io(e, &path))
    }

    /// Makes a volume without branches one that has branch 0, named `main`. A killed call may be repeated.
    pub(crate) fn init(&self, layout: Layout) -> Result<Layout> {
        let path = self.branches();
        let main = Entry {
            number: FIRST_BRANCH,
            parent: FIRST_BRANCH,
            version: 0,
            state: EntryState::Named(MAIN.to_owned()),
        };
        if let Some(entry) = self.numbered(FIRST_BRANCH)? {
            return Ok(self.record(&entry)?.layout);
        }
        let make = || -> io::Result<()> {
            make_dir(&path)?;
            sync_dir(&self.path)
        };
        make().map_err(|e| io(e, &path))?;
        // The counter comes first: a branch without one is damage. Until branch 0 has its name there is no fork, and
        // the counter may be set again.
        let counter = Counter {
            layout,
            next: layout.first,
        }
        .encode();
        let mut bytes = vec![0; SLOT as usize * 2];
        bytes[..counter.len()].copy_from_slice(&counter);
        let path = self.counter_path();
        replace(&path, &bytes).map_err(|e| io(e, &path))?;
        let new = Entry {
            state: EntryState::New,
            ..main.clone()
        };
        let path = self.entry_path(&new);
        remove_dir(&path).map_err(|e| io(e, &path))?;
        make_dir(&path).map_err(|e| io(e, &path))?;
        let record = BranchRecord {
            number: FIRST_BRANCH,
            parent: FIRST_BRANCH,
            layout,
            regions: Vec::new(),
            origin: None,
        };
        self.write_record(&new, &record)?;
        self.set_state(&new, main.state)?;
        Ok(layout)
    }

    pub(crate) fn space_path(&self) -> PathBuf {
        self.branches().join(SPACE)
    }

    fn counter_path(&self) -> PathBuf {
        self.branches().join(COUNTER)
    }

    /// Returns the counter, and the slot that holds it.
    fn read_counter(&self) -> Result<(Counter, u64, File)> {
        let path = self.counter_path();
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).open(&path);
        let file = match file {
            Err(e)
                if e.kind() == io::ErrorKind::PermissionDenied
                    || e.kind() == io::ErrorKind::ReadOnlyFilesystem =>
            {
                File::open(&path)
            }
            other => other,
        };
        let file = file.map_err(|e| io(e, &path))?;
        let len = Counter::LEN;
        let mut newest: Option<(Counter, u64)> = None;
        let mut damage = None;
        for slot in 0..2 {
            let mut bytes = vec![0; len];
            let read = file.read_exact_at(&mut bytes, slot * SLOT);
            read.map_err(|e| io(e, &path))?;
            match Counter::decode(&bytes) {
                Ok(found) if newest.is_none_or(|(c, _)| found.next > c.next) => {
                    newest = Some((found, slot));
                }
                Ok(_) => {}
                Err(e) => damage = Some(e),
            }
        }
        match (newest, damage) {
            (Some((counter, slot)), _) => Ok((counter, slot, file)),
            (None, Some(e)) => Err(e),
            (None, None) => Err(Error::corrupt(path.display(), "is empty")),
        }
    }

    /// Returns the number of regions that no branch has taken.
    pub(crate) fn regions_left(&self) -> Result<u64> {
        let (counter, _, _) = self.read_counter()?;
        Ok(counter.layout.regions() - counter.next)
    }

    /// Takes the next free region. The caller holds the lock of the counter, and syncs the returned file before the
    /// region is used.
    fn take(&self) -> Result<Taken> {
        let found = self.read_counter()?;
        let region = found.0.next;
        self.grant(found, region)
    }

    /// Writes a counter by which no region up to `region` is free.
    fn grant(&self, found: (Counter, u64, File), region: u64) -> Result<Taken> {
        let (mut counter, slot, file) = found;
        if region >= counter.layout.regions() {
            return Err(regions_used(&counter.layout));
        }
        counter.next = region + 1;
        let written = file.write_all_at(&counter.encode(), (1 - slot) * SLOT);
        written.map_err(|e| io(e, &self.counter_path()))?;
        Ok(Taken {
            region,
            counter,
            file,
            older_slot: slot,
        })
    }

    /// Takes a region for a branch that has used up another one. The caller holds the lock of the counter until the
    /// record of the branch has the region.
    pub(crate) fn take_region(&self) -> Result<u64> {
        self.finish_take(&self.take()?)
    }

    /// Takes certain regions, unless a branch has one of them. Lower free ones are not given out afterwards. The caller
    /// holds the lock of the counter until the record of the branch has them.
    pub(crate) fn take_regions_at(&self, regions: &BTreeSet<u64>) -> Result<()> {
        let found = self.read_counter()?;
        let Counter { layout, next } = found.0;
        let mut used = BTreeSet::new();
        for entry in self.list()? {
            used.insert(entry.number);
            match (self.record(&entry), &entry.state) {
                (Ok(record), _) => used.extend(record.regions),
                // A fork that is not finished, or a branch whose content is gone.
                (Err(_), EntryState::New | EntryState::Dead) => {}
                (Err(e), _) => return Err(e),
            }
        }
        let is_used = |region: u64| {
            let exists = || self.region_path(region).exists();
            region < layout.first || used.contains(&region) || exists()
        };
        if let Some(region) = regions.iter().find(|region| is_used(**region)) {
            return Err(Error::Usage(format!(
                "the stream has addresses in region {region}, which another branch of this volume has: receive the branches of a volume in the order in which they were forked, into a copy that has no other forks"
            )));
        }
        let last = regions.last().copied().unwrap_or_default();
        if last < next {
            // A killed receive has taken it.
            return Ok(());
        }
        if last - next > (layout.regions() - next) / 2 {
            return Err(Error::Limit(format!(
                "the stream has addresses in region {last}, and the next free one is {next}: it would use up half of the address space"
            )));
        }
        self.finish_take(&self.grant(found, last)?).map(drop)
    }

    fn finish_take(&self, taken: &Taken) -> Result<u64> {
        let synced = durable::sync(&taken.file).and_then(|()| taken.copy());
        synced.map_err(|e| io(e, &self.counter_path()))?;
        Ok(taken.region)
    }

    /// Takes a number and creates the directory of a fork, which is not durable yet. The returned file holds the lock
    /// of the branch. `make` builds its record and the content of `fixed`. `newest` is the highest number of the
    /// branches, if the caller has listed them.
    pub(crate) fn create(
        &self,
        (parent, version): (u64, u64),
        newest: Option<u64>,
        make: impl FnOnce(u64, Layout) -> Result<(BranchRecord, Vec<(u64, Vec<u8>)>)>,
    ) -> Result<(Entry, File)> {
        let (entry, fixed, taken) = {
            let _held = self.lock_counter()?;
            let taken = self.take()?;
            let number = taken.region;
            let entry = Entry {
                number,
                parent,
                version,
                state: EntryState::New,
            };
            let path = self.entry_path(&entry);
            let is_used = match newest {
                Some(newest) => number <= newest,
                None => self.numbered(number)?.is_some(),
            };
            if self.region_path(number).exists() || is_used {
                return Err(Error::corrupt(
                    "counter of regions",
                    format_args!("region {number} is in use: the counter is older than the volume"),
                ));
            }
            make_dir(&path).map_err(|e| io(e, &path))?;
            let path = path.join("fixed");
            let fixed = create(&path, &[]).map_err(|e| io(e, &path))?;
            lock(&fixed, false).map_err(|e| io(e, &path))?;
            (entry, fixed, taken)
        };
        let (record, blocks) = make(entry.number, taken.counter.layout)?;
        let path = self.entry_path(&entry);
        let write = || -> io::Result<()> {
            for (at, bytes) in &blocks {
                fixed.write_all_at(bytes, *at)?;
            }
            let record = create(&path.join("record"), &record.encode())?;
            let dir = File::open(&path)?;
            durable::sync_together(&[&taken.file, &fixed, &record, &dir])?;
            taken.copy()
        };
        write().map_err(|e| io(e, &path))?;
        Ok((entry, fixed))
    }

    /// Makes the directory of an unfinished fork durable. From then on it pins its fork point.
    pub(crate) fn pin(&self) -> Result<()> {
        self.sync_names()
    }

    /// Marks what killed forks left behind as deleted. The caller holds the lock of the set.
    pub(crate) fn mark_leftovers(&self) -> Result<()> {
        let new = |entry: &Entry| entry.state == EntryState::New;
        if !self.list()?.iter().any(new) {
            return Ok(());
        }
        let _held = self.lock_counter()?;
        for entry in self.list()?.into_iter().filter(new) {
            let in_progress =
                File::open(self.fixed_path(&entry)).is_ok_and(|file| lock(&file, false).is_err());
            if in_progress {
                continue;
            }
            if self.record(&entry).is_ok() {
                self.set_state(&entry, EntryState::Dead)?;
            } else {
                // Without a record it was never durable, and pins nothing.
                self.forget(&entry)?;
            }
        }
        Ok(())
    }

    /// Removes the zone files of a deleted branch, and its superblocks and packs.
    pub(crate) fn remove_content(&self, entry: &Entry) -> Result<()> {
        let record = self.record(entry)?;
        let fixed = self.fixed_path(entry);
        remove_file(&fixed).map_err(|e| io(e, &fixed))?;
        let mut regions = record.regions;
        match entry.number {
            FIRST_BRANCH => {
                let zones = self.path.join("zones");
                remove_files(&zones).map_err(|e| io(e, &zones))?;
            }
            number => regions.push(number),
        }
        let any = !regions.is_empty();
        for region in regions {
            let path = self.region_path(region);
            remove_dir(&path).map_err(|e| io(e, &path))?;
        }
        let path = self.regions_path();
        if any && path.exists() {
            sync_dir(&path).map_err(|e| io(e, &path))?;
        }
        Ok(())
    }

    /// Removes the directory of a branch that has no content and pins nothing.
    pub(crate) fn forget(&self, entry: &Entry) -> Result<()> {
        let path = self.entry_path(entry);
        remove_dir(&path).map_err(|e| io(e, &path))?;
        self.sync_names()
    }

    /// Opens the file that holds the lock of a branch, and takes the lock. `None` if another process has it.
    pub(crate) fn try_lock(&self, entry: &Entry, read_only: bool) -> Result<Option<File>> {
        let path = match entry.number {
            FIRST_BRANCH => self.path.join("zones"),
            _ => self.fixed_path(entry),
        };
        let file = File::open(&path).map_err(|e| io(e, &path))?;
        match lock(&file, read_only) {
            Ok(()) => Ok(Some(file)),
            Err(e) if e.kind() == io::ErrorKind::ResourceBusy => Ok(None),
            Err(e) => Err(io(e, &path)),
        }
    }
}

/// Error of a volume that has no region left.
pub(crate) fn regions_used(layout: &Layout) -> Error {
    Error::Limit(format!(
        "all {} regions of the volume's address space are used: copy the branch to a new volume with `send` and `receive`",
        layout.regions()
    ))
}

/// Waits for an exclusive lock on a directory.
fn lock_dir(path: &Path) -> Result<File> {
    let file = File::open(path).map_err(|e| io(e, path))?;
    retry_on_intr(|| flock(&file, FlockOperation::LockExclusive))
        .map_err(|e| io(e.into(), path))?;
    Ok(file)
}

/// Removes the files in a directory.
fn remove_files(path: &Path) -> io::Result<()> {
    let list = || -> io::Result<Vec<_>> {
        let entries = fs::read_dir(path)?;
        entries.map(|entry| entry.map(|e| e.path())).collect()
    };
    retry(list)?.iter().try_for_each(|file| remove_file(file))?;
    sync_dir(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_directories_round_trip_and_others_are_rejected() {
        for state in [
            EntryState::New,
            EntryState::Named(".dead".to_owned()),
            EntryState::Named("über + alles".to_owned()),
            EntryState::Hiding,
            EntryState::Hidden,
            EntryState::Dead,
        ] {
            let entry = Entry {
                number: 0xabc,
                parent: 2,
                version: u64::MAX,
                state,
            };
            assert_eq!(Entry::parse(&entry.file_name()), Some(entry));
        }
        for name in [
            "",
            "x",
            "0000000a-00000000-0000000000000000.odd",
            "0000000A-00000000-0000000000000000.new",
        ] {
            assert_eq!(Entry::parse(name), None, "{name}");
        }
        for name in ["", "a/b", "a\nb", &"x".repeat(65)] {
            assert!(check_name(name).is_err(), "{name}");
        }
        assert!(check_name(&"x".repeat(64)).is_ok());
    }
}
