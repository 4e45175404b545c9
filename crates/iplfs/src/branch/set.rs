//! Changes of the set of branches of a volume: forks of unmounted branches, deletion, renaming, and the list.
//!
//! Each change holds the lock of the set. It begins by finishing or removing what killed ones left behind.

use super::fork::{ForkPlan, layout, name_taken, no_branches};
use crate::backend::ZoneDir;
use crate::backend::branch::{BranchSet, Entry, EntryState, check_name};
use crate::backend::snapshot_lock::is_mounted;
use crate::backend::space;
use crate::backend::{MAIN, NAME_MAX};
use crate::checkpoint::pack::{find_checkpoint, read_superblock};
use crate::device::BlockDevice;
use crate::disk::branch::{FIRST_BRANCH, ForkPoint};
use crate::disk::checkpoint::Phase;
use crate::disk::inode::Time;
use crate::error::{Error, Result};
use crate::options::MountOptions;
use crate::volume::fork_points::PinFork;
use crate::volume::state::Volume;
use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// Branch of a volume, as its newest checkpoint describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BranchInfo {
    /// Name. `None` for a deleted branch that is kept because forks of it need its blocks.
    pub name: Option<String>,
    /// Number, never used again.
    pub number: u64,
    /// Number of the branch from which it was forked.
    pub parent: Option<u64>,
    /// Name of that branch, if it has one.
    pub parent_name: Option<String>,
    /// Snapshot of the parent from which it was forked. `None` if it was forked from the present state.
    pub snapshot: Option<String>,
    /// Time of the fork point. `None` for the first branch and a flattened one.
    pub forked_at: Option<Time>,
    /// Number of forks of this branch.
    pub children: usize,
    /// Set if the branch is mounted for writing.
    pub is_mounted: bool,
    /// Live blocks that belong to other branches.
    pub shared_blocks: u64,
    /// Live blocks of its own.
    pub private_blocks: u64,
    /// Blocks of its own that only its snapshots and fork points refer to.
    pub held_blocks: u64,
}

/// Returns the branches in the order of their numbers. A volume that was never forked has `main` alone.
pub fn branches(dir: &Path) -> Result<Vec<BranchInfo>> {
    let set = open_set(dir)?;
    let _held = set.lock()?;
    // On a host that is read-only, a killed change stays half done.
    let _ = set.finish_renames();
    let entries = set.list()?;
    if entries.is_empty() {
        let info = describe(&set, None, &entries)?;
        return Ok(vec![info]);
    }
    let shown = |entry: &&Entry| !matches!(entry.state, EntryState::New | EntryState::Dead);
    let shown = entries.iter().filter(shown);
    shown
        .map(|entry| describe(&set, Some(entry), &entries))
        .collect()
}

fn describe(set: &BranchSet, entry: Option<&Entry>, all: &[Entry]) -> Result<BranchInfo> {
    let dev = open_device(set, entry, None)?;
    let sb = read_superblock(&*dev)?;
    let seal = find_checkpoint(&*dev, &sb, false)?.seal;
    let number = entry.map_or(FIRST_BRANCH, |entry| entry.number);
    let main = Entry {
        number,
        parent: FIRST_BRANCH,
        version: 0,
        state: EntryState::Named(MAIN.to_owned()),
    };
    let entry = entry.unwrap_or(&main);
    // Readers share the lock.
    let is_mounted = set.try_lock(entry, true)?.is_none();
    let origin = dev.branch().and_then(|branch| branch.origin().cloned());
    let parent = origin.as_ref().map(|_| entry.parent);
    let parent_name = all.iter().find(|other| Some(other.number) == parent);
    let live = seal.live_blocks + seal.nat_blocks;
    let shared_blocks = seal.shared_blocks.min(live);
    Ok(BranchInfo {
        name: entry.name().map(str::to_owned),
        number,
        parent,
        parent_name: parent_name
            .and_then(|other| other.name())
            .map(str::to_owned),
        snapshot: origin
            .as_ref()
            .filter(|origin| origin.of_snapshot)
            .map(|origin| origin.state.name.clone()),
        forked_at: origin.map(|origin| origin.state.time),
        children: all
            .iter()
            .filter(|other| other.is_child_of(number) && other.state != EntryState::Dead)
            .count(),
        is_mounted,
        shared_blocks,
        private_blocks: live - shared_blocks,
        held_blocks: seal.held_blocks,
    })
}

/// Returns how many more forks the address space of a volume allows.
pub fn forks_left(dir: &Path) -> Result<u64> {
    let set = open_set(dir)?;
    if !set.list()?.is_empty() {
        return set.regions_left();
    }
    let dev = open_device(&set, None, None)?;
    let sb = read_superblock(&*dev)?;
    let seal = find_checkpoint(&*dev, &sb, false)?.seal;
    let far = seal.logs.iter().map(|marks| marks.far).max().unwrap_or(0);
    match layout(&sb, far, MountOptions::default().window_blocks) {
        Ok(layout) => Ok(layout.regions() - layout.first),
        Err(_) => Ok(0),
    }
}

/// Forks a branch that is not mounted: at its newest state, or at a snapshot. `from` is `main` if it is `None`. A killed
/// call may be repeated.
///
/// # Errors
/// `Io` with `ResourceBusy` if the branch is mounted; its mount forks it with [`Volume::begin_fork`]. `Usage` if the
/// name is taken or not valid, or there is no such branch or snapshot. `Unsupported` if the volume is not a directory
/// of zone files. `Limit` if the address space is used up.
pub fn fork(
    dir: &Path,
    from: Option<&str>,
    name: &str,
    snapshot: Option<&str>,
    now: Time,
) -> Result<()> {
    check_name(name)?;
    let set = open_set(dir)?;
    let _held = set.lock()?;
    let mut entries = set.list()?;
    if set.has_leftovers(&entries) {
        clean(&set)?;
        entries = set.list()?;
    }
    let entry = find_in(&entries, from.unwrap_or(MAIN))?;
    let is_taken = entries.iter().any(|entry| entry.name() == Some(name));
    if is_taken || entry.is_none() && name == MAIN {
        return Err(name_taken(name));
    }
    let mut plan = plan(&set, entry.as_ref(), name, snapshot, now, entry.is_some())?;
    plan.newest = entries.last().map(|entry| entry.number);
    plan.pin()?;
    let named = plan.name();
    if named.is_err() {
        plan.abandon();
    }
    named
}

/// Plans a fork of an unmounted branch. With `shared`, it may be mounted read-only.
fn plan(
    set: &BranchSet,
    entry: Option<&Entry>,
    name: &str,
    snapshot: Option<&str>,
    now: Time,
    shared: bool,
) -> Result<ForkPlan> {
    let mut dev = open_device(set, entry, Some(shared))?;
    let sb = read_superblock(&*dev)?;
    let mut found = find_checkpoint(&*dev, &sb, false)?;
    if snapshot.is_none() && found.seal.phase != Phase::Clean {
        drop(dev);
        dev = open_device(set, entry, Some(false))?;
        mount(&dev)?.unmount()?;
        found = find_checkpoint(&*dev, &sb, false)?;
    }
    let (seal, body) = (found.seal, found.body);
    let far = seal.logs.iter().map(|marks| marks.far).max().unwrap_or(0);
    let layout = match dev.branch().and_then(|branch| branch.layout()) {
        Some(layout) => layout,
        None => layout(&sb, far, MountOptions::default().window_blocks)?,
    };
    let point = match snapshot {
        None => ForkPoint::of_seal(&seal, body.journal, body.orphans, now),
        Some(name) => {
            let state = body.snapshots.into_iter().find(|s| s.name == name);
            ForkPoint {
                state: state.ok_or_else(|| no_snapshot(name))?,
                of_snapshot: true,
                ..ForkPoint::of_seal(&seal, Vec::new(), Vec::new(), now)
            }
        }
    };
    ForkPlan::offline(dev, sb, name, layout, point)
}

/// Deletes a branch that is not mounted. If forks of it exist, what they need of it stays until they are deleted, without
/// a name. A killed call may be repeated.
///
/// # Errors
/// `Io` with `ResourceBusy` if it is mounted. `Usage` if it is `main`, or does not exist.
pub fn delete_branch(dir: &Path, name: &str) -> Result<()> {
    let set = open_set(dir)?;
    let _held = set.lock()?;
    clean(&set)?;
    delete(&set, name)
}

fn delete(set: &BranchSet, name: &str) -> Result<()> {
    if name == MAIN {
        return Err(Error::Usage(format!(
            "branch '{MAIN}' cannot be deleted: promote another branch first"
        )));
    }
    let entry = find(set, name)?.ok_or_else(|| no_such(name))?;
    let held = lock(set, &entry, name)?;
    require_no_mounted_snapshot(set, entry.number, name)?;
    let is_needed =
        |other: &Entry| other.is_child_of(entry.number) && other.state != EntryState::Dead;
    let state = match set.list()?.iter().any(is_needed) {
        true => EntryState::Hiding,
        false => EntryState::Dead,
    };
    set.set_state(&entry, state)?;
    drop(held);
    sweep(set)
}

/// Gives a branch the name `main`. Returns the name that the old `main` gets. Neither may be mounted.
///
/// # Errors
/// `Io` with `ResourceBusy` if one of them is mounted. `Usage` if there is no such branch.
pub fn promote_branch(dir: &Path, name: &str) -> Result<String> {
    let set = open_set(dir)?;
    let _held = set.lock()?;
    clean(&set)?;
    let entry = find(&set, name)?.ok_or_else(|| no_such(name))?;
    let main = find(&set, MAIN)?.ok_or_else(|| no_such(MAIN))?;
    if main.number == entry.number {
        return Err(Error::Usage(format!("'{name}' is the main branch already")));
    }
    let _locks = (lock(&set, &entry, name)?, lock(&set, &main, MAIN)?);
    let old = unused_name(&set, MAIN)?;
    set.rename_all(&[(main.number, old.clone()), (entry.number, MAIN.to_owned())])?;
    Ok(old)
}

/// Takes a branch back to one of its snapshots: a fork of the snapshot takes its name. What it leaves becomes a branch
/// of the returned name, with all snapshots. With `discard` it is deleted. The branch must not be mounted. A killed call
/// may be repeated.
///
/// # Errors
/// Those of [`fork`].
pub fn rollback_branch(
    dir: &Path,
    name: &str,
    snapshot: &str,
    discard: bool,
    now: Time,
) -> Result<Option<String>> {
    let set = open_set(dir)?;
    let _held = set.lock()?;
    clean(&set)?;
    let entry = find(&set, name)?;
    if discard {
        let number = entry.as_ref().map_or(FIRST_BRANCH, |entry| entry.number);
        require_no_mounted_snapshot(&set, number, name)?;
    }
    let plan = plan(&set, entry.as_ref(), name, Some(snapshot), now, false)?;
    plan.pin()?;
    // The first fork makes the entry of the first branch.
    let entry = find(&set, name)?.ok_or_else(|| no_such(name))?;
    let old = unused_name(&set, name)?;
    set.pin().inspect_err(|_| plan.abandon())?;
    let Some((fork, _lock)) = plan.take_pinned() else {
        return Err(Error::Usage("the fork was given up".to_owned()));
    };
    set.rename_all(&[(entry.number, old.clone()), (fork.number, name.to_owned())])?;
    drop(plan);
    if !discard {
        return Ok(Some(old));
    }
    delete(&set, &old)?;
    Ok(None)
}

/// Fails if a process has a snapshot of a branch mounted, which the deletion of the branch would free.
fn require_no_mounted_snapshot(set: &BranchSet, number: u64, name: &str) -> Result<()> {
    if !is_mounted(set, number, None)? {
        return Ok(());
    }
    let what = format!("a snapshot of branch '{name}' is mounted");
    Err(Error::io(
        io::Error::new(io::ErrorKind::ResourceBusy, what),
        "changing the branches of the volume",
    ))
}

/// Returns `NAME-1`, or the first such name that is not used.
fn unused_name(set: &BranchSet, name: &str) -> Result<String> {
    let entries = set.list()?;
    let used: HashSet<&str> = entries.iter().filter_map(Entry::name).collect();
    let mut number = 1u64;
    loop {
        let suffix = format!("-{number}");
        let mut end = name.len().min(NAME_MAX - suffix.len());
        while !name.is_char_boundary(end) {
            end -= 1;
        }
        let candidate = format!("{}{suffix}", &name[..end]);
        if !used.contains(candidate.as_str()) {
            return Ok(candidate);
        }
        number += 1;
    }
}

/// Finishes or removes what killed changes left behind.
pub(super) fn clean(set: &BranchSet) -> Result<()> {
    set.finish_renames()?;
    set.mark_leftovers()?;
    sweep(set)
}

/// Frees deleted branches as far as nothing needs them. Branches whose parent is mounted wait: the mount releases them.
pub(super) fn sweep(set: &BranchSet) -> Result<()> {
    let mut seen = HashSet::new();
    loop {
        let entries = set.list()?;
        let open = |entry: &&Entry| {
            matches!(entry.state, EntryState::Dead | EntryState::Hiding)
                && !seen.contains(&(entry.number, entry.state == EntryState::Dead))
        };
        let Some(entry) = entries.iter().find(open) else {
            return Ok(());
        };
        seen.insert((entry.number, entry.state == EntryState::Dead));
        match entry.state {
            EntryState::Hiding => hide(set, entry)?,
            _ => bury(set, entry, &entries)?,
        }
    }
}

/// Drops the present state of a deleted branch that has forks.
fn hide(set: &BranchSet, entry: &Entry) -> Result<()> {
    let Some(dev) = try_open(set, entry)? else {
        return Ok(());
    };
    let mut volume = mount(&dev)?;
    volume.collapse()?;
    volume.unmount()?;
    set.set_state(entry, EntryState::Hidden).map(drop)
}

/// Frees a deleted branch, and its fork point in its parent.
fn bury(set: &BranchSet, entry: &Entry, entries: &[Entry]) -> Result<()> {
    match set.remove_content(entry) {
        // The record goes last.
        Err(Error::Io(e, _)) if e.kind() == io::ErrorKind::NotFound => return set.forget(entry),
        other => other?,
    }
    // Otherwise a branch that finds no space does it.
    let _ = space::forget(set, entry.number);
    let parent = entries.iter().find(|other| entry.is_child_of(other.number));
    let Some(parent) = parent.filter(|parent| parent.state != EntryState::Dead) else {
        return set.forget(entry);
    };
    let is_needed = |other: &Entry| {
        other.is_child_of(parent.number)
            && other.number != entry.number
            && other.state != EntryState::Dead
    };
    let is_hidden = matches!(parent.state, EntryState::Hidden | EntryState::Hiding);
    if is_hidden && !entries.iter().any(is_needed) {
        set.set_state(parent, EntryState::Dead)?;
        return set.forget(entry);
    }
    let Some(dev) = try_open(set, parent)? else {
        return Ok(());
    };
    // The mount releases the fork point.
    let mut volume = mount(&dev)?;
    match is_hidden {
        true => volume.collapse()?,
        false => volume.drain()?,
    }
    volume.unmount()
}

pub(super) fn mount(dev: &Arc<dyn BlockDevice>) -> Result<Volume> {
    Volume::mount(dev.clone(), MountOptions::default())
}

/// Opens a branch for writing. `None` if it is mounted.
fn try_open(set: &BranchSet, entry: &Entry) -> Result<Option<Arc<dyn BlockDevice>>> {
    match open_device(set, Some(entry), Some(false)) {
        Err(Error::Io(e, _)) if e.kind() == io::ErrorKind::ResourceBusy => Ok(None),
        dev => dev.map(Some),
    }
}

pub(super) fn open_device(
    set: &BranchSet,
    entry: Option<&Entry>,
    access: Option<bool>,
) -> Result<Arc<dyn BlockDevice>> {
    Ok(Arc::new(open_zone_dir(set, entry, access)?))
}

pub(super) fn open_zone_dir(
    set: &BranchSet,
    entry: Option<&Entry>,
    access: Option<bool>,
) -> Result<ZoneDir> {
    match ZoneDir::open_entry(set.path(), entry, access) {
        Ok(dev) => Ok(dev),
        Err(e) if e.kind() == io::ErrorKind::ResourceBusy => {
            Err(busy(entry.and_then(Entry::name).unwrap_or(MAIN)))
        }
        Err(e) if e.kind() == io::ErrorKind::InvalidData => Err(Error::Corrupt(e.to_string())),
        Err(e) => Err(Error::io(e, set.path().display())),
    }
}

fn lock(set: &BranchSet, entry: &Entry, name: &str) -> Result<File> {
    set.try_lock(entry, false)?.ok_or_else(|| busy(name))
}

fn busy(name: &str) -> Error {
    let what = format!("branch '{name}' is mounted or in use");
    Error::io(
        io::Error::new(io::ErrorKind::ResourceBusy, what),
        "changing the branches of the volume",
    )
}

fn no_such(name: &str) -> Error {
    Error::Usage(format!("the volume has no branch '{name}'"))
}

pub(super) fn no_snapshot(name: &str) -> Error {
    Error::Usage(format!("the branch has no snapshot '{name}'"))
}

/// Entry of a branch. `None` for `main` of a volume that was never forked.
pub(super) fn find(set: &BranchSet, name: &str) -> Result<Option<Entry>> {
    find_in(&set.list()?, name)
}

pub(super) fn find_in(entries: &[Entry], name: &str) -> Result<Option<Entry>> {
    match entries.iter().find(|entry| entry.name() == Some(name)) {
        Some(entry) => Ok(Some(entry.clone())),
        None if entries.is_empty() && name == MAIN => Ok(None),
        None => Err(no_such(name)),
    }
}

pub(super) fn open_set(dir: &Path) -> Result<BranchSet> {
    let path = std::path::absolute(dir).map_err(|e| Error::io(e, dir.display()))?;
    let meta = std::fs::metadata(&path).map_err(|e| Error::io(e, dir.display()))?;
    match meta.is_dir() {
        true => Ok(BranchSet::at(&path)),
        false => Err(no_branches()),
    }
}
