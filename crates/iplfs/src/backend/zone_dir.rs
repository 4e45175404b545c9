//! Directory with one sparse file per zone.
//!
//! ```text
//!  DIR/volume            header: what this is and the size of a zone
//!  DIR/volume.copy       its copy; either is enough to open the volume
//!  DIR/zones/0000000000  … one file per zone that holds anything, named by its number in hexadecimal
//! ```
//!
//! A volume with branches has more files, see `branch.rs`. The device is then one branch: it reads the zone files of all
//! branches, and writes only those of its own regions. Superblocks and packs of a fork are a file of their own, which
//! stands for the fixed blocks of the address space.
//!
//! No common host filesystem has files of 8 EiB (ext4 ends at 16 TiB). Zone files also make releasing a dead zone one
//! `unlink`, where a large file would need a hole punched for every block. The directory acts as the root of an
//! interval map, and the extent tree of each file as its leaf.

use super::branch::{BranchSet, Entry, EntryState, MAIN};
use super::host::{
    self, BS, data_runs, lock, punch, read_sparse, retry, write_in_place, write_zeros,
};
use super::snapshot_lock::is_mounted;
use super::space;
use crate::device::{BlockDevice, BranchDevice, Child, is_full};
use crate::disk::address::{BLOCK_SIZE, BlockAddr};
use crate::disk::branch::{BranchRecord, FIRST_BRANCH, ForkPoint, Layout, REGION_BITS};
use crate::error::{Error, Result};
use crate::finding::Finding;
use rustix::fs::{AtFlags, FileType, OFlags, StatxFlags, fstatvfs, statx};
use rustix::io::retry_on_intr;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

const MAGIC: &str = "tuff volume in zone files, version 1";
/// Names of the header and its copy.
const HEADERS: [&str; 2] = ["volume", "volume.copy"];
/// Upper bound of the length of a header. Unit: bytes.
const HEADER_LEN_MAX: u64 = 128;
/// Maximum number of open zone files.
const OPEN_MAX: usize = 128;

/// Device in a directory of zone files.
pub struct ZoneDir {
    path: PathBuf,
    zones_path: PathBuf,
    /// Open for its lock, which earlier versions look for.
    _header: Option<File>,
    /// Directory of zone files; holds the lock.
    zones_dir: File,
    /// Headers that are damaged or missing.
    damaged: Mutex<Vec<&'static str>>,
    zone_blocks: u64,
    read_only: bool,
    can_punch: bool,
    branch: OwnBranch,
    state: Mutex<ZoneFiles>,
    /// Held by the flush in progress: a second flush must not find the files clean and return early. True after a
    /// failed flush.
    flushing: Mutex<bool>,
}

/// Branch that the device shows.
struct OwnBranch {
    set: BranchSet,
    number: u64,
    /// Division of the address space. Unset while the volume has no branches.
    layout: OnceLock<Layout>,
    /// State from which the branch was forked.
    origin: Option<ForkPoint>,
    /// Regions that the branch took after its first one.
    regions: Mutex<BTreeSet<u64>>,
    /// Superblocks and packs of a fork. Branch 0 has them in its first zone file.
    fixed: Option<File>,
    /// Set if `fixed` was changed since the last flush.
    fixed_dirty: AtomicBool,
    /// Entries of the children, as they were listed last.
    children: Mutex<Vec<Entry>>,
}

/// Place of a zone.
#[derive(PartialEq, Eq)]
enum Owner {
    Own(PathBuf),
    Other(PathBuf),
}

#[derive(Default)]
struct ZoneFiles {
    /// Own zones that have a file.
    zones: BTreeSet<u64>,
    open: BTreeMap<u64, Arc<File>>,
    /// Files changed since the last flush.
    dirty: BTreeMap<u64, Arc<File>>,
    /// Set if files were created or removed since the last flush.
    names_dirty: bool,
    /// Other directories in which files were created or removed since the last flush.
    dirs_dirty: BTreeSet<PathBuf>,
}

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
        let entries = set.list().map_err(into_io)?;
        let entry = entries.iter().find(|entry| entry.name() == Some(name));
        if entry.is_none() && !(entries.is_empty() && name == MAIN) {
            return Err(no_branch(name));
        }
        Self::open_entry(path, entry, Some(read_only)).map_err(|e| match e.kind() {
            io::ErrorKind::ResourceBusy => {
                io::Error::new(e.kind(), format!("branch '{name}' of the volume is in use"))
            }
            _ => e,
        })
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
    /// read-only; `None` is for reading superblocks and
    /// packs without a lock.
    pub(crate) fn open_entry(
        path: &Path,
        entry: Option<&Entry>,
        access: Option<bool>,
    ) -> io::Result<Self> {
        let read_only = access.unwrap_or(true);
        let (zone_blocks, damaged) = Self::read_headers(path)?;
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

    /// Finds the zones of the branch again, which another process may have changed.
    pub(crate) fn list_zones(&self) -> io::Result<()> {
        let zones = self.branch.zones(&self.zones_path)?;
        self.lock_state().zones = zones;
        Ok(())
    }

    /// Reads the size of a zone, and which headers are damaged.
    fn read_headers(path: &Path) -> io::Result<(u64, Vec<&'static str>)> {
        let headers = HEADERS.map(|name| read_header(&path.join(name)));
        let none = |header: &io::Result<_>| matches!(header, Err(e) if e.kind() == io::ErrorKind::NotFound);
        if headers.iter().all(none) {
            let what = "is not a volume: the directory has no file `volume`";
            return Err(io::Error::new(io::ErrorKind::NotFound, what));
        }
        let mut damaged = Vec::new();
        let mut sizes = Vec::new();
        for (name, header) in HEADERS.into_iter().zip(&headers) {
            match header {
                Ok(Some(size)) => sizes.push(*size),
                _ => damaged.push(name),
            }
        }
        let zone_blocks = match sizes[..] {
            [a, b] if a != b => {
                return Err(bad(&format!(
                    "`volume` states zones of {a} blocks and `volume.copy` of {b}: remove the wrong one"
                )));
            }
            [size, ..] => size,
            [] => {
                // An unreadable copy may be sound.
                if let Some(e) = headers
                    .into_iter()
                    .filter_map(io::Result::err)
                    .find(|e| e.kind() != io::ErrorKind::NotFound)
                {
                    return Err(e);
                }
                return Err(bad(
                    "neither `volume` nor `volume.copy` is the header of a volume in zone files; a new volume with zones of the same size has the same two files",
                ));
            }
        };
        Ok((zone_blocks, damaged))
    }

    fn lock_state(&self) -> MutexGuard<'_, ZoneFiles> {
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
    fn file(&self, zone: u64, make: bool) -> io::Result<Option<Arc<File>>> {
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
    fn has_name(&self, zone: u64, file: &File) -> io::Result<()> {
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
    fn pieces(&self, blocks: Range<u64>) -> impl Iterator<Item = (u64, Range<u64>)> + use<> {
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
    fn own_pieces(&self, blocks: Range<u64>) -> Vec<(u64, Range<u64>)> {
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

    fn remove(&self, zone: u64) -> io::Result<()> {
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

/// Opens a regular file without blocking. `InvalidInput` if it is not a regular file. Timestamps are not queried, see
/// [`has_name`](ZoneDir::has_name).
fn open_regular(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    // Fits: a flag of `open`, which takes an int.
    options.custom_flags(OFlags::NONBLOCK.bits() as i32);
    let file = match options.open(path) {
        // Another process holds a lease on the file: wait until it is released.
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => options.custom_flags(0).open(path)?,
        file => file?,
    };
    let ask = || statx(&file, "", AtFlags::EMPTY_PATH, StatxFlags::TYPE);
    let mode = u32::from(retry_on_intr(ask)?.stx_mode);
    if !FileType::from_raw_mode(mode).is_file() {
        let what = format!("{} is not a regular file", path.display());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    }
    Ok(file)
}

/// Reads the zone size from a header. `None` if the header is damaged.
fn read_header(path: &Path) -> io::Result<Option<u64>> {
    let file = match open_regular(path, OpenOptions::new().read(true)) {
        Err(e) if e.kind() == io::ErrorKind::InvalidInput => return Ok(None),
        file => file?,
    };
    let mut bytes = Vec::new();
    file.take(HEADER_LEN_MAX).read_to_end(&mut bytes)?;
    let mut sizes = (4..=24).map(|bits| 1 << bits);
    Ok(sizes.find(|size| bytes == header(*size).as_bytes()))
}

fn header(zone_blocks: u64) -> String {
    format!("{MAGIC}\nzone_blocks {zone_blocks}\n")
}

/// Writes headers one after the other, so that one is always intact.
fn write_headers(path: &Path, names: &[&str], zone_blocks: u64) -> io::Result<()> {
    for name in names {
        let path = path.join(name);
        if retry(|| fs::metadata(&path)).is_ok_and(|meta| !meta.is_file()) {
            let what = format!("{} is not a regular file: remove it", path.display());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        let mut file = File::create(path)?;
        file.write_all(header(zone_blocks).as_bytes())?;
        file.sync_all()?;
    }
    File::open(path)?.sync_all()
}

/// File name of a zone.
fn zone_name(zone: u64) -> String {
    format!("{zone:010x}")
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

impl OwnBranch {
    fn from_record(set: BranchSet, record: Option<BranchRecord>, fixed: Option<File>) -> Self {
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
        };
        if let Some(record) = record {
            let _ = layout.set(record.layout);
            branch.number = record.number;
            branch.origin = record.origin;
            branch.regions = Mutex::new(record.regions.into_iter().collect());
        }
        Self { layout, ..branch }
    }

    fn listed(&self) -> MutexGuard<'_, Vec<Entry>> {
        // Every change is one assignment.
        self.children.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn regions(&self) -> MutexGuard<'_, BTreeSet<u64>> {
        // Every change is one insertion.
        self.regions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lists the zones of the branch that have a file.
    fn zones(&self, zones_path: &Path) -> io::Result<BTreeSet<u64>> {
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
                    bad(&format!("{dir}/{} is not a zone file", name.display()))
                })?);
            }
        }
        Ok(zones)
    }

    /// Block of the file `fixed` that stands for an address.
    fn fixed_block(&self, addr: u64) -> Option<(&File, u64)> {
        let (fixed, layout) = (self.fixed.as_ref()?, self.layout.get()?);
        let spare = 7 << layout.area_bits;
        match addr {
            addr if addr < layout.fixed_blocks => Some((fixed, addr)),
            addr if addr == spare => Some((fixed, layout.fixed_blocks)),
            _ => None,
        }
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

fn bad(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

impl BlockDevice for ZoneDir {
    fn read(&self, addr: BlockAddr, buf: &mut [u8]) -> io::Result<()> {
        if let Some((fixed, block)) = self.branch.fixed_block(addr.0) {
            return read_sparse(fixed, block, buf);
        }
        let mut rest = buf;
        for (zone, piece) in self.pieces(addr.0..addr.0 + (rest.len() / BLOCK_SIZE) as u64) {
            let (now, later) = rest.split_at_mut((piece.end - piece.start) as usize * BLOCK_SIZE);
            match self.file(zone, false)? {
                Some(file) => read_sparse(&file, piece.start, now)?,
                None => now.fill(0),
            }
            rest = later;
        }
        Ok(())
    }

    fn write(&self, addr: BlockAddr, data: &[u8]) -> io::Result<()> {
        if let Some((fixed, block)) = self.branch.fixed_block(addr.0) {
            let written = fixed.write_all_at(data, block * BS);
            self.branch.fixed_dirty.store(true, Relaxed);
            return written;
        }
        let mut rest = data;
        for (zone, piece) in self.pieces(addr.0..addr.0 + (rest.len() / BLOCK_SIZE) as u64) {
            let (now, later) = rest.split_at((piece.end - piece.start) as usize * BLOCK_SIZE);
            if let Some(file) = self.file(zone, true)? {
                let written = file.write_all_at(now, piece.start * BS);
                // A flush may have taken the file between its opening and its writing: mark it again.
                self.lock_state().dirty.insert(zone, file);
                written?;
            }
            rest = later;
        }
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        let mut failed = self.flushing.lock().unwrap_or_else(PoisonError::into_inner);
        if *failed {
            // Hosts report a loss only once.
            return Err(io::Error::other("an earlier flush failed"));
        }
        let (dirty, names, dirs) = {
            let mut state = self.lock_state();
            (
                std::mem::take(&mut state.dirty),
                std::mem::take(&mut state.names_dirty),
                std::mem::take(&mut state.dirs_dirty),
            )
        };
        // File names first: data in a file that a crash forgets is lost.
        let result = if names {
            self.zones_dir.sync_all()
        } else {
            Ok(())
        };
        let result = result
            .and_then(|()| {
                let mut dirs = dirs.iter();
                dirs.try_for_each(|dir| File::open(dir)?.sync_all())
            })
            .and_then(|()| {
                dirty.iter().try_for_each(|(zone, file)| {
                    file.sync_data()?;
                    self.has_name(*zone, file)
                })
            })
            .and_then(|()| match &self.branch.fixed {
                Some(fixed) if self.branch.fixed_dirty.swap(false, Relaxed) => fixed.sync_data(),
                _ => Ok(()),
            });
        *failed = result.is_err();
        result
    }

    fn discard(&self, blocks: Range<u64>) -> io::Result<()> {
        for (zone, piece) in self.own_pieces(blocks) {
            if piece == (0..self.zone_blocks) {
                self.remove(zone)?;
            } else if let Some(file) = self.file(zone, false)? {
                punch(&file, piece)?;
                self.lock_state().dirty.insert(zone, file);
            }
        }
        Ok(())
    }

    fn allocated(&self, blocks: Range<u64>) -> io::Result<Vec<Range<u64>>> {
        if blocks.start >= blocks.end {
            return Ok(Vec::new());
        }
        let zones: Vec<u64> = {
            let state = self.lock_state();
            state
                .zones
                .range(blocks.start / self.zone_blocks..=(blocks.end - 1) / self.zone_blocks)
                .copied()
                .collect()
        };
        let mut runs: Vec<Range<u64>> = Vec::new();
        for zone in zones {
            let base = zone * self.zone_blocks;
            let Some(file) = self.file(zone, false)? else {
                continue;
            };
            let inside =
                blocks.start.max(base) - base..blocks.end.min(base + self.zone_blocks) - base;
            for run in data_runs(&file, inside)? {
                match runs.last_mut() {
                    Some(last) if last.end == base + run.start => last.end = base + run.end,
                    _ => runs.push(base + run.start..base + run.end),
                }
            }
        }
        Ok(runs)
    }

    fn branch(&self) -> Option<&dyn BranchDevice> {
        Some(self)
    }

    fn knows_allocated(&self) -> bool {
        true
    }

    fn granule(&self) -> u64 {
        // Without hole punching only a whole file can be released.
        if self.can_punch { 1 } else { self.zone_blocks }
    }

    fn zone_blocks(&self) -> Option<u64> {
        Some(self.zone_blocks)
    }

    fn release_zone(&self, zone: u64) -> io::Result<()> {
        self.remove(zone)
    }

    fn zones(&self, zones: Range<u64>) -> io::Result<Vec<u64>> {
        Ok(self.lock_state().zones.range(zones).copied().collect())
    }

    fn preallocate(&self, blocks: Range<u64>) -> io::Result<()> {
        if let Some((fixed, _)) = self.branch.fixed_block(blocks.start) {
            return host::reserve(fixed, blocks);
        }
        for (zone, piece) in self.pieces(blocks) {
            if let Some(file) = self.file(zone, true)? {
                host::reserve(&file, piece)?;
            }
        }
        Ok(())
    }

    fn release_preallocated(&self, blocks: Range<u64>) -> io::Result<()> {
        for (zone, piece) in self.own_pieces(blocks) {
            if let Some(file) = self.file(zone, false)? {
                host::release_preallocated(&file, piece)?;
            }
        }
        Ok(())
    }

    fn prepare(&self, blocks: Range<u64>) -> io::Result<bool> {
        for (zone, piece) in self.pieces(blocks) {
            if let Some(file) = self.file(zone, true)? {
                let written = write_zeros(&file, piece);
                self.lock_state().dirty.insert(zone, file);
                written?;
            }
        }
        Ok(true)
    }

    fn free_blocks(&self) -> io::Result<Option<u64>> {
        let host = retry_on_intr(|| fstatvfs(&self.zones_dir))?;
        Ok(Some(host.f_bavail.saturating_mul(host.f_frsize) / BS))
    }

    fn damaged_files(&self) -> Vec<Finding> {
        let damaged = self.damaged.lock().unwrap_or_else(PoisonError::into_inner);
        damaged
            .iter()
            .map(|name| Finding::new(format_args!("file {name}"), "is damaged or missing"))
            .collect()
    }

    fn rewrite_damaged_files(&self) -> io::Result<()> {
        let mut damaged = self.damaged.lock().unwrap_or_else(PoisonError::into_inner);
        if !damaged.is_empty() {
            write_headers(&self.path, &damaged, self.zone_blocks)?;
            damaged.clear();
        }
        Ok(())
    }
}

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
        let mut entries = self.branch.set.list()?;
        entries.retain(|entry| entry.is_child_of(self.branch.number));
        let children = entries.iter().map(|entry| Child {
            number: entry.number,
            version: entry.version,
            is_dead: entry.state == EntryState::Dead,
        });
        let children = children.collect();
        *self.branch.listed() = entries;
        Ok(children)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flush_waits_for_the_one_in_progress() {
        // Bug: the flush of a checkpoint found the files clean that the flush of an fsync was still writing, and
        // sealed data that was not durable. Cause: the list of files was taken, and its lock released, before the
        // files were synced. Fix: one flush at a time.
        let dir = std::env::temp_dir().join(format!("tuff-flush-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        let device = ZoneDir::create(&dir, 16).unwrap();
        device.write(BlockAddr(3), &[1; BLOCK_SIZE]).unwrap();
        std::thread::scope(|scope| {
            let under_way = device.flushing.lock().unwrap();
            let second = scope.spawn(|| device.flush());
            std::thread::sleep(std::time::Duration::from_millis(50));
            assert!(!second.is_finished());
            assert_eq!(device.lock_state().dirty.len(), 1);
            drop(under_way);
            second.join().unwrap().unwrap();
        });
        assert!(device.lock_state().dirty.is_empty());
        // After a failed flush every later one fails.
        *device.flushing.lock().unwrap() = true;
        assert!(device.flush().is_err());
        drop(device);
        fs::remove_dir_all(&dir).unwrap();
    }
}
