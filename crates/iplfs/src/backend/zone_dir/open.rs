//! Creation and opening of a directory of zone files.

use super::files::{ZoneDir, ZoneFiles};
use super::header::{HEADERS, read_headers, write_headers};
use super::own_branch::OwnBranch;
use crate::backend::branch::{BranchSet, Entry, MAIN};
use crate::backend::host::{self, BS, lock, open_regular, punch, retry, write_in_place};
use crate::device::is_full;
use crate::disk::branch::FIRST_BRANCH;
use crate::error::Error;
use rustix::fs::OFlags;
use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Mutex;

impl ZoneDir {
    /// Creates an empty device in a directory that is empty or does not exist. `zone_blocks` is a power of two.
    pub fn create(path: &Path, zone_blocks: u64) -> io::Result<Self> {
        if !zone_blocks.is_power_of_two() || !(16..=1 << 24).contains(&zone_blocks) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("zones of {zone_blocks} blocks"),
            ));
        }
        retry(|| fs::create_dir_all(path))?;
        if retry(|| fs::read_dir(path)?.next().transpose())?.is_some() {
            return Err(io::Error::new(
                io::ErrorKind::AlreadyExists,
                "the directory is not empty",
            ));
        }
        // This succeeds for only one of several concurrent callers.
        retry(|| fs::create_dir(path.join("zones")))?;
        Self::fill(path, zone_blocks).inspect_err(|_| Self::unmake(path))
    }

    fn fill(path: &Path, zone_blocks: u64) -> io::Result<Self> {
        write_in_place(&File::open(path.join("zones"))?);
        write_headers(path, &HEADERS, zone_blocks)?;
        Self::open(path, false)
    }

    /// Returns true if the directory `path` has a header of a device made by [`create`](Self::create).
    pub fn is_at(path: &Path) -> bool {
        HEADERS.iter().any(|name| path.join(name).is_file())
    }

    /// Removes what [`create`](Self::create) made in the directory `path`, which stays. Errors are ignored: the
    /// caller already has one to report.
    pub fn unmake(path: &Path) {
        for name in HEADERS {
            let _ = retry(|| fs::remove_file(path.join(name)));
        }
        let _ = retry(|| fs::remove_dir_all(path.join("zones")));
    }

    /// Opens a device made by [`create`](Self::create), or its branch `main`. `ResourceBusy` if it is already open.
    pub fn open(path: &Path, read_only: bool) -> io::Result<Self> {
        Self::open_branch(path, None, read_only)
    }

    /// Opens a branch, `main` without a name. `NotFound` if there is none of the name, `ResourceBusy` if it is already
    /// open.
    pub fn open_branch(path: &Path, branch: Option<&str>, read_only: bool) -> io::Result<Self> {
        // A process that becomes a daemon changes its working directory.
        let path = &std::path::absolute(path)?;
        let set = BranchSet::at(path);
        let name = branch.unwrap_or(MAIN);
        if !set.exists() {
            return match name {
                MAIN => Self::open_entry(path, None, Some(read_only)),
                _ => Err(no_branch(name)),
            };
        }
        // Against changes of the set between the look-up and the lock of the branch.
        let _held = set.lock().map_err(into_io)?;
        match set.finish_renames() {
            Err(e) if !read_only => return Err(into_io(e)),
            _ => {}
        }
        // Against a fork whose process begins it after the listing, and is killed before the lock of the branch is taken.
        let counter = (!read_only).then(|| set.lock_counter());
        let _counter = counter.transpose().map_err(into_io)?;
        let entries = set.list().map_err(into_io)?;
        let entry = entries.iter().find(|entry| entry.name() == Some(name));
        if entry.is_none() && !(entries.is_empty() && name == MAIN) {
            return Err(no_branch(name));
        }
        let device =
            Self::open_entry(path, entry, Some(read_only)).map_err(|e| match e.kind() {
                io::ErrorKind::ResourceBusy => {
                    io::Error::new(e.kind(), format!("branch '{name}' of the volume is in use"))
                }
                _ => e,
            })?;
        if entry.is_some() && !read_only {
            // The mount needs no other listing.
            device.branch.keep_listed(entries);
        }
        Ok(device)
    }

    /// Opens a branch by its number, read-only. Deleted branches that forks need have no name.
    #[doc(hidden)]
    pub fn open_number(path: &Path, number: u64) -> io::Result<Self> {
        let set = BranchSet::at(path);
        let entry = set.numbered(number).map_err(into_io)?;
        let entry = entry.ok_or_else(|| no_branch(&number.to_string()))?;
        Self::open_entry(path, Some(&entry), Some(true))
    }

    /// Opens a branch by its entry, or the only branch of a volume without entries. `access` is whether it is
    /// read-only; `None` is for reading superblocks and packs without a lock.
    pub(crate) fn open_entry(
        path: &Path,
        entry: Option<&Entry>,
        access: Option<bool>,
    ) -> io::Result<Self> {
        let read_only = access.unwrap_or(true);
        let (zone_blocks, damaged) = read_headers(path)?;
        let zones_path = path.join("zones");
        let mut options = OpenOptions::new();
        // Fits: a flag of `open`, which takes an int.
        options.custom_flags(OFlags::DIRECTORY.bits() as i32);
        let zones_dir = options.read(true).open(&zones_path)?;
        let set = BranchSet::at(path);
        let mut header = None;
        let mut fixed = None;
        match entry.filter(|entry| entry.number != FIRST_BRANCH) {
            Some(entry) => {
                let mut options = OpenOptions::new();
                options.read(true).write(!read_only);
                let file = open_regular(&set.fixed_path(entry), &mut options)?;
                access.map_or(Ok(()), |read_only| lock(&file, read_only))?;
                if !read_only {
                    // Without this space, a full host could take no checkpoint and thus no delete. A full one already
                    // fails the next write.
                    let blocks = file.metadata()?.len().div_ceil(BS);
                    let _ = host::reserve(&file, 0..blocks);
                }
                fixed = Some(file);
            }
            None if access.is_some() => {
                lock(&zones_dir, read_only)?;
                header = open_regular(&path.join(HEADERS[0]), OpenOptions::new().read(true)).ok();
                header
                    .as_ref()
                    .map_or(Ok(()), |header| lock(header, read_only))?;
            }
            None => {}
        }
        let record = entry.map(|entry| set.record(entry)).transpose();
        let mut record = record.map_err(into_io)?;
        if let Some(record) = record
            .as_mut()
            .filter(|_| !entry.is_some_and(Entry::has_parent))
        {
            record.origin = None;
        }
        let sound = HEADERS.into_iter().find(|name| !damaged.contains(name));
        let can_punch = read_only || can_punch(&path.join(sound.unwrap_or(HEADERS[0])))?;
        if !read_only {
            // Earlier versions reserved space in this file.
            let _ = retry(|| fs::remove_file(path.join("ballast")));
        }
        let branch = OwnBranch::from_record(set, record, fixed);
        // Superblocks and packs of the first branch are in a zone file.
        let zones = match access.is_some() || branch.fixed.is_none() {
            true => branch.zones(&zones_path)?,
            false => BTreeSet::new(),
        };
        Ok(Self {
            path: path.to_owned(),
            zones_path,
            _header: header,
            zones_dir,
            damaged: Mutex::new(damaged),
            zone_blocks,
            read_only,
            can_punch,
            branch,
            state: Mutex::new(ZoneFiles {
                zones,
                ..ZoneFiles::default()
            }),
            flushing: Mutex::new(false),
        })
    }
}

/// Tests whether the host can punch holes, by punching one where no data is. This takes no space, which a full host
/// would lack.
fn can_punch(volume: &Path) -> io::Result<bool> {
    let file = open_regular(volume, OpenOptions::new().write(true))?;
    match punch(&file, 1..2) {
        Err(e) if matches!(e.raw_os_error(), Some(95 | 38)) => Ok(false),
        Err(e) if !is_full(&e) => Err(e),
        _ => Ok(true),
    }
}

/// Converts an error of the set of branches.
fn into_io(e: Error) -> io::Error {
    let kind = match &e {
        Error::Io(e, _) => e.kind(),
        Error::Corrupt(_) => io::ErrorKind::InvalidData,
        Error::Unsupported(_) => io::ErrorKind::Unsupported,
        _ => io::ErrorKind::InvalidInput,
    };
    let what = match e {
        Error::Corrupt(what) => what,
        e => e.to_string(),
    };
    io::Error::new(kind, what)
}

fn no_branch(name: &str) -> io::Error {
    let what = format!("the volume has no branch '{name}'");
    io::Error::new(io::ErrorKind::NotFound, what)
}
