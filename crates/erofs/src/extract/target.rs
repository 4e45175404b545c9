//! Target directory: access by directory handles, checked names, no symlinks followed.
//!
//! In a directory that is already visible, incomplete entries have a temporary name. This applies to large files and to
//! whole new directories. Entries inside such a new directory have their final names from the start. A killed process
//! therefore leaves nothing partial in a new tree, at the cost of one rename. Small files directly in a directory that
//! existed before are the exception: a rename for each would take half as long as creating the file.

use crate::walk::shortened;
use crate::{Error, Remedy, Result};
use rustix::fs::{self, AtFlags, CWD, FileType, FlockOperation, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use tuff_format::Nid;
use tuff_store::retry;
use xxhash_rust::xxh3::xxh3_64;

/// Prefix of temporary names. The rest is a hash of the final name, so that the next extraction finds the leftovers of
/// a killed one.
const TEMPORARY: &str = ".tuff-extract-";

/// Returns the temporary name of `name`.
pub(super) fn temporary_name(name: &[u8]) -> Box<[u8]> {
    let name = format!("{TEMPORARY}{:016x}", xxh3_64(name));
    name.into_bytes().into()
}

/// Minimum size of files that get a temporary name in a visible directory, in bytes.
const STAGED_FROM: u64 = 1 << 20;

/// Returns the temporary name for a file in `dir`, or `None` if it is created under its final name. Files that may replace others
/// have one, so that the others stay until these are complete.
pub(super) fn stage_name(dir: &Dir, name: &[u8], size: u64, overwrite: bool) -> Option<Box<[u8]>> {
    let is_staged = dir.is_visible() && (overwrite || size >= STAGED_FROM);
    is_staged.then(|| temporary_name(name))
}

/// Rejects a name in a visible directory that could be mistaken for the temporary name of another entry.
pub(super) fn check_name(above: &Dir, name: &[u8]) -> Result<()> {
    if above.is_visible() && name.starts_with(TEMPORARY.as_bytes()) {
        return Err(Error::usage(
            "the name is reserved for temporary files; extract into a new directory",
        ));
    }
    Ok(())
}

/// Open target directory and, for a new target, its temporary name.
pub(super) struct Root {
    fd: OwnedFd,
    /// Temporary name of a new target until it is complete. `None` if the target existed before.
    stage: Option<Stage>,
}

/// Parent directory, temporary name and final path of a new target.
struct Stage {
    above: OwnedFd,
    temporary: Box<[u8]>,
    path: PathBuf,
}

/// Opens the target directory, or creates it. Symlinks in the path to it are trusted and followed. With `reuse`, a new
/// target starts from the leftover of a killed extraction.
pub(super) fn open_target(path: &Path, reuse: bool) -> Result<Root> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let open = |path: &Path| {
        let fd = retry(|| fs::openat(CWD, path, flags, Mode::empty()));
        fd.map_err(|e| Error::io(path.display(), "opening the target directory", e.into()))
    };
    let name = match retry(|| fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW)) {
        Err(Errno::NOENT) => path.file_name(),
        _ => None,
    };
    let Some(name) = name else {
        let fd = open(path)?;
        // Shared lock, tested by `is_alone` in other extractions. A filesystem without locks lacks this protection.
        let _ = fs::flock(&fd, FlockOperation::NonBlockingLockShared);
        return Ok(Root { fd, stage: None });
    };
    let making = |e: Errno| Error::io(path.display(), "creating the target directory", e.into());
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty());
    let parent = parent.unwrap_or(Path::new("."));
    let above = retry(|| fs::openat(CWD, parent, flags, Mode::empty()));
    let what = "opening the directory of the target";
    let above = above.map_err(|e| Error::io(parent.display(), what, e.into()))?;
    let temporary = temporary_name(name.as_encoded_bytes());
    let mode = Mode::RWXU | Mode::from_raw_mode(0o055);
    remove_stale(above.as_fd(), &temporary);
    let make = || retry(|| fs::mkdirat(&above, &*temporary, mode));
    let fd = loop {
        make_over_leftover(None, above.as_fd(), &temporary, reuse, make)
            .map_err(|e| e.within(path.display()))?;
        let fd = open_dir(&above, &temporary).map_err(making)?;
        let _ = retry(|| fs::flock(&fd, FlockOperation::LockShared));
        // Until it was locked, another extraction may have taken it for a leftover and removed it.
        if has_name(&fd, above.as_fd(), &temporary).map_err(making)? {
            break fd;
        }
    };
    Ok(Root {
        fd,
        stage: Some(Stage {
            above,
            temporary,
            path: path.to_owned(),
        }),
    })
}

/// Returns true if the open directory is the one called `name` in `above`.
fn has_name(dir: &OwnedFd, above: BorrowedFd<'_>, name: &[u8]) -> rustix::io::Result<bool> {
    let own = retry(|| fs::fstat(dir))?;
    match retry(|| fs::statat(above, name, AtFlags::SYMLINK_NOFOLLOW)) {
        Ok(named) => Ok((own.st_dev, own.st_ino) == (named.st_dev, named.st_ino)),
        Err(Errno::NOENT) => Ok(false),
        Err(e) => Err(e),
    }
}

/// Removes directories in `above` that killed extractions of this user to other targets have left. Errors leave them there.
fn remove_stale(above: BorrowedFd<'_>, own: &[u8]) {
    let Ok(entries) = std::fs::read_dir(format!("/proc/self/fd/{}", above.as_raw_fd())) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let name = name.as_encoded_bytes();
        let is_temporary = name
            .strip_prefix(TEMPORARY.as_bytes())
            .is_some_and(|hash| hash.len() == 16 && hash.iter().all(u8::is_ascii_hexdigit));
        if is_temporary && name != own {
            let _ = remove_unlocked(above, name);
        }
    }
}

/// Removes a directory of this user, unless an extraction uses it.
fn remove_unlocked(above: BorrowedFd<'_>, name: &[u8]) -> std::io::Result<()> {
    let dir = open_dir(above, name)?;
    if fs::fstat(&dir)?.st_uid != rustix::process::geteuid().as_raw() {
        return Ok(());
    }
    fs::flock(&dir, FlockOperation::NonBlockingLockExclusive)?;
    // Below the handle, so that a name which leads elsewhere meanwhile is not followed.
    for entry in std::fs::read_dir(format!("/proc/self/fd/{}", dir.as_raw_fd()))? {
        let entry = entry?;
        match entry.file_type()?.is_dir() {
            true => std::fs::remove_dir_all(entry.path())?,
            false => std::fs::remove_file(entry.path())?,
        }
    }
    Ok(fs::unlinkat(above, name, AtFlags::REMOVEDIR)?)
}

impl Root {
    /// Returns true if the target existed before the extraction.
    pub(super) fn is_visible(&self) -> bool {
        self.stage.is_none()
    }

    /// Renames a new target to its final name.
    pub(super) fn finish(&self) -> Result<()> {
        let Some(stage) = &self.stage else {
            return Ok(());
        };
        let name = stage.path.file_name().unwrap_or_default();
        let name = name.as_encoded_bytes();
        give_name(&stage.above, &stage.temporary, name, false)
            .map_err(|e| e.within(stage.path.display()))
    }

    /// Handle of the target.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Returns true if no other extraction uses the target.
    fn is_alone(&self) -> bool {
        let alone = fs::flock(&self.fd, FlockOperation::NonBlockingLockExclusive);
        let _ = fs::flock(&self.fd, FlockOperation::NonBlockingLockShared);
        alone != Err(Errno::WOULDBLOCK)
    }
}

/// Creates an entry under a temporary name. The leftover of a killed extraction under that name is removed first, or,
/// with `reuse`, adopted if it is a directory. `root` is `None` for the target itself.
fn make_over_leftover<T: Default>(
    root: Option<&Root>,
    above: BorrowedFd<'_>,
    temporary: &[u8],
    reuse: bool,
    make: impl Fn() -> rustix::io::Result<T>,
) -> Result<T> {
    let io = |e: Errno| Error::io("", "creating it under a temporary name", e.into());
    match make() {
        Ok(made) => return Ok(made),
        Err(Errno::EXIST) => {}
        Err(e) => return Err(io(e)),
    }
    let dir = check_leftover(root, above, temporary)?;
    match dir {
        Some(_) if reuse => return Ok(T::default()),
        Some(_) => {
            // The path through the handle follows no symlink.
            let shown = String::from_utf8_lossy(temporary);
            let path = format!("/proc/self/fd/{}/{shown}", above.as_raw_fd());
            std::fs::remove_dir_all(path).map_err(|e| {
                let what = format_args!(
                    "removing {shown}, the leftover of a killed extraction; remove it manually"
                );
                Error::io("", what, e)
            })?;
        }
        None => remove(above, temporary).map_err(io)?,
    }
    make().map_err(io)
}

/// Fails if another extraction still writes to the leftover. Otherwise returns the handle if it is a directory.
fn check_leftover(
    root: Option<&Root>,
    above: BorrowedFd<'_>,
    temporary: &[u8],
) -> Result<Option<OwnedFd>> {
    let dir = open_dir(above, temporary).ok();
    let is_locked = |dir| {
        let locked = fs::flock(dir, FlockOperation::NonBlockingLockExclusive);
        locked == Err(Errno::WOULDBLOCK)
    };
    if dir.as_ref().is_some_and(is_locked) || root.is_some_and(|root| !root.is_alone()) {
        let shown = String::from_utf8_lossy(temporary);
        let what = format_args!("another extraction is creating it as {shown}");
        let busy = std::io::ErrorKind::WouldBlock.into();
        return Err(Error::io("", what, busy));
    }
    Ok(dir)
}

/// Removes the leftover of a killed extraction for a file that is complete.
pub(super) fn remove_leftover(root: &Root, above: BorrowedFd<'_>, temporary: &[u8]) -> Result<()> {
    let io = |e: Errno| Error::io("", "removing the leftover of a killed extraction", e.into());
    if !is_there(above, temporary).map_err(io)?
        || check_leftover(Some(root), above, temporary)?.is_some()
    {
        return Ok(());
    }
    remove(above, temporary).map_err(io)
}

/// Renames a complete entry to its final name. An existing entry is an error, or is unlinked first with `overwrite`.
pub(super) fn give_name(
    above: impl AsFd,
    temporary: &[u8],
    name: &[u8],
    overwrite: bool,
) -> Result<()> {
    let above = above.as_fd();
    let rename = || {
        let flags = RenameFlags::NOREPLACE;
        match retry(|| fs::renameat_with(above, temporary, above, name, flags)) {
            // Not every filesystem supports `RENAME_NOREPLACE`.
            Err(Errno::INVAL | Errno::NOSYS) => match is_there(above, name)? {
                true => Err(Errno::EXIST),
                false => retry(|| fs::renameat(above, temporary, above, name)),
            },
            named => named,
        }
    };
    // Unlinked first: on ext4, a rename that replaces a file forces writeback of the new one.
    create(
        above,
        name,
        overwrite,
        "renaming it to its final name",
        rename,
    )
}

/// Returns true if an entry with this name exists.
pub(super) fn is_there(above: impl AsFd, name: &[u8]) -> rustix::io::Result<bool> {
    match retry(|| fs::statat(&above, name, AtFlags::SYMLINK_NOFOLLOW)) {
        Ok(_) => Ok(true),
        Err(Errno::NOENT) => Ok(false),
        Err(e) => Err(e),
    }
}

/// Directory below the target, or the target itself.
pub(super) struct Dir {
    /// Unique number of this directory.
    id: u64,
    /// Parent directory. `None` for the target itself.
    parent: Option<Arc<Dir>>,
    name: Box<[u8]>,
    pub(super) nid: Nid,
    /// True if the directory leads to selected paths and is not to be changed where it exists.
    pub(super) is_above: bool,
    /// True if the directory existed before and is left as it is.
    kept: AtomicBool,
    /// True if the directory exists in the target.
    made: AtomicBool,
    /// True if the directory and all its ancestors have their final names. Its entries are then renamed when they are
    /// complete.
    visible: AtomicBool,
    /// True if the directory has its temporary name.
    staged: AtomicBool,
}

impl Drop for Dir {
    /// Drops ancestors iteratively: recursion in a deep chain of directories could overflow the stack.
    fn drop(&mut self) {
        let mut next = self.parent.take();
        while let Some(mut dir) = next.and_then(Arc::into_inner) {
            next = dir.parent.take();
        }
    }
}

impl Dir {
    /// Returns the target itself, with the attributes of inode `nid`.
    pub(super) fn top(nid: Nid, root: &Root) -> Arc<Self> {
        Arc::new(Self {
            id: 0,
            parent: None,
            name: Box::new([]),
            nid,
            is_above: false,
            kept: AtomicBool::new(false),
            made: AtomicBool::new(true),
            visible: AtomicBool::new(root.is_visible()),
            staged: AtomicBool::new(false),
        })
    }

    /// Returns a directory in `parent` that is not created yet. The caller has checked `name`. One with `is_above` leads to
    /// selected paths and is not to be changed where it exists.
    pub(super) fn child(parent: &Arc<Self>, name: &[u8], nid: Nid, is_above: bool) -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Arc::new(Self {
            id: NEXT.fetch_add(1, Relaxed),
            parent: Some(parent.clone()),
            name: name.into(),
            nid,
            is_above,
            kept: AtomicBool::new(false),
            made: AtomicBool::new(false),
            visible: AtomicBool::new(false),
            staged: AtomicBool::new(false),
        })
    }

    pub(super) fn is_made(&self) -> bool {
        self.made.load(Relaxed)
    }

    pub(super) fn is_kept(&self) -> bool {
        self.kept.load(Relaxed)
    }

    pub(super) fn is_visible(&self) -> bool {
        self.visible.load(Relaxed)
    }

    pub(super) fn is_staged(&self) -> bool {
        self.staged.load(Relaxed)
    }

    /// Returns the path of `name` in this directory, relative to the target. An empty name gives the path of the
    /// directory itself.
    pub(super) fn path(&self, name: &[u8]) -> Vec<u8> {
        let mut parts = vec![name];
        let mut at = Some(self);
        while let Some(dir) = at {
            parts.push(&dir.name);
            at = dir.parent.as_deref();
        }
        parts.reverse();
        parts.retain(|p| !p.is_empty());
        parts.join(&b'/')
    }
}

/// Cache of recently used directory handles. Each thread has its own.
#[derive(Default)]
pub(super) struct Handles {
    /// Open handles, most recently used first.
    open: Vec<(Arc<Dir>, Arc<OwnedFd>)>,
    /// Ancestors of a deep directory, each below the previous one, at intervals along the path. They shorten the lookup
    /// on the way back up, which would otherwise start at the target for each step.
    marks: Vec<(Arc<Dir>, Arc<OwnedFd>)>,
}

/// Maximum number of cached handles.
const KEPT: usize = 48;
/// Maximum number of cached handles to ancestors of deep directories.
const MARKS: usize = 24;

impl Handles {
    /// Returns the handle of a directory that exists. Opens it one component at a time from the nearest cached
    /// ancestor, so that no path is too long and no symlink is followed.
    pub(super) fn get(&mut self, root: &Root, dir: &Arc<Dir>) -> Result<Arc<OwnedFd>> {
        if let Some(fd) = self.find(dir) {
            return Ok(fd);
        }
        let mut missing = Vec::new();
        let mut at = dir;
        let mut fd = None;
        while let Some(parent) = &at.parent {
            missing.push(at);
            fd = self.find(parent);
            if fd.is_some() {
                break;
            }
            at = parent;
        }
        let step = self.mark_step(missing.len());
        for (n, dir) in missing.into_iter().rev().enumerate() {
            let above = fd.as_ref().map_or(root.fd.as_fd(), |fd| fd.as_fd());
            let next = match dir.is_staged() {
                true => open_dir(above, &temporary_name(&dir.name)),
                false => open_dir(above, &dir.name),
            };
            let next =
                next.map_err(|e| Error::io(show(dir, &[]), "opening the directory", e.into()))?;
            let next = Arc::new(next);
            self.keep(dir, next.clone());
            if (n + 1).is_multiple_of(step) {
                self.marks.push((dir.clone(), next.clone()));
            }
            fd = Some(next);
        }
        match fd {
            Some(fd) => Ok(fd),
            None => {
                let fd = root.fd.try_clone();
                let fd = Arc::new(fd.map_err(|e| Error::io("", "reopening the target", e))?);
                self.keep(dir, fd.clone());
                Ok(fd)
            }
        }
    }

    /// Returns the interval at which `missing` directories become marks. Half of the free marks are spread over them.
    fn mark_step(&self, missing: usize) -> usize {
        let free = (MARKS - self.marks.len()) / 2;
        match missing > 2 * KEPT && free > 0 {
            true => missing.div_ceil(free),
            false => usize::MAX,
        }
    }

    fn find(&mut self, dir: &Arc<Dir>) -> Option<Arc<OwnedFd>> {
        let Some(at) = self.open.iter().position(|(d, _)| d.id == dir.id) else {
            let at = self.marks.iter().position(|(d, _)| d.id == dir.id)?;
            // Deeper marks are already finished, or in other parts of the tree.
            self.marks.truncate(at + 1);
            return Some(self.marks[at].1.clone());
        };
        self.open[..=at].rotate_right(1);
        Some(self.open[0].1.clone())
    }

    fn keep(&mut self, dir: &Arc<Dir>, fd: Arc<OwnedFd>) {
        self.open.truncate(KEPT - 1);
        self.open.insert(0, (dir.clone(), fd));
    }

    /// Creates a directory and its missing ancestors. `overwrite` accepts an existing directory. `merge` accepts one
    /// created by this extraction. Returns the directory that has a temporary name, if any.
    pub(super) fn make(
        &mut self,
        root: &Root,
        dir: &Arc<Dir>,
        overwrite: bool,
        merge: bool,
    ) -> Result<Option<Arc<Dir>>> {
        let mut staged_dir = None;
        let mut todo = Vec::new();
        let mut at = dir;
        while !at.is_made() {
            todo.push(at);
            match &at.parent {
                Some(parent) => at = parent,
                None => break,
            }
        }
        for dir in todo.into_iter().rev() {
            let Some(parent) = &dir.parent else { continue };
            check_name(parent, &dir.name)?;
            let above = self.get(root, parent)?;
            let io = |e: Errno| Error::io(show(dir, &[]), "creating the directory", e.into());
            let make = |name: &[u8]| retry(|| fs::mkdirat(&above, name, Mode::RWXU));
            // Merged directories are entered several times, so they cannot keep a temporary name until they are
            // complete.
            let staged = parent.is_visible() && !merge;
            let is_existing = match staged {
                true => is_there(&above, &dir.name).map_err(io)?,
                false => match make(&dir.name) {
                    Ok(()) => false,
                    Err(Errno::EXIST) => true,
                    Err(e) => return Err(io(e)),
                },
            };
            let mut goes_on = false;
            if is_existing {
                if !(overwrite || merge || dir.is_above) {
                    return Err(exists());
                }
                let stat = retry(|| fs::statat(&above, &*dir.name, AtFlags::SYMLINK_NOFOLLOW));
                let mode = stat.map_err(io)?.st_mode;
                goes_on = FileType::from_raw_mode(mode) == FileType::Directory;
                if dir.is_above {
                    if !goes_on {
                        return Err(io(Errno::NOTDIR));
                    }
                    dir.kept.store(true, Relaxed);
                }
                if !goes_on {
                    // A symlink to a directory is replaced, too: it must not be followed.
                    remove(above.as_fd(), &dir.name).map_err(io)?;
                    if !staged {
                        make(&dir.name).map_err(io)?;
                    }
                }
            }
            if staged && !goes_on {
                let temporary = temporary_name(&dir.name);
                let make = || make(&temporary);
                make_over_leftover(Some(root), above.as_fd(), &temporary, overwrite, make)
                    .map_err(|e| e.within(show(dir, &[])))?;
                dir.staged.store(true, Relaxed);
                staged_dir = Some(dir.clone());
            } else {
                dir.visible.store(parent.is_visible(), Relaxed);
            }
            dir.made.store(true, Relaxed);
        }
        Ok(staged_dir)
    }

    /// Renames a complete directory to its final name if it has a temporary one.
    pub(super) fn finish(&mut self, root: &Root, dir: &Arc<Dir>) -> Result<()> {
        let Some(parent) = dir.parent.as_ref().filter(|_| dir.is_staged()) else {
            return Ok(());
        };
        let above = self.get(root, parent)?;
        give_name(&*above, &temporary_name(&dir.name), &dir.name, false)?;
        dir.staged.store(false, Relaxed);
        Ok(())
    }
}

pub(super) fn open_dir(above: impl AsFd, name: &[u8]) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    retry(|| fs::openat(&above, name, flags, Mode::empty()))
}

/// Creates an entry with `make`. An existing entry is an error, or is unlinked first with `overwrite`. The caller has
/// checked `name`.
pub(super) fn create<T>(
    above: impl AsFd,
    name: &[u8],
    overwrite: bool,
    what: &'static str,
    make: impl Fn() -> rustix::io::Result<T>,
) -> Result<T> {
    let io = |e: Errno| Error::io("", what, e.into());
    match make() {
        Ok(made) => Ok(made),
        Err(Errno::EXIST) if overwrite => {
            remove(above, name).map_err(io)?;
            make().map_err(io)
        }
        Err(Errno::EXIST) => Err(exists()),
        Err(e) => Err(io(e)),
    }
}

fn remove(above: impl AsFd, name: &[u8]) -> rustix::io::Result<()> {
    retry(|| fs::unlinkat(&above, name, AtFlags::empty()))
}

/// Creates a regular file. An existing entry is an error, or is unlinked first with `overwrite`.
pub(super) fn create_file(above: impl AsFd, name: &[u8], overwrite: bool) -> Result<File> {
    let make = || new_file(above.as_fd(), name);
    create(above.as_fd(), name, overwrite, "creating the file", make).map(File::from)
}

/// Creates a regular file under its temporary name.
pub(super) fn stage_file(root: &Root, above: impl AsFd, temporary: &[u8]) -> Result<File> {
    let make = || new_file(above.as_fd(), temporary).map(Some);
    let made = make_over_leftover(Some(root), above.as_fd(), temporary, false, make)?;
    // Without reuse, `make` was called, so a file is present.
    made.map(File::from).ok_or_else(exists)
}

fn new_file(above: BorrowedFd<'_>, name: &[u8]) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    retry(|| fs::openat(above, name, flags, Mode::RUSR | Mode::WUSR))
}

/// Reopens a regular file that was created and closed.
pub(super) fn reopen_file(above: impl AsFd, name: &[u8]) -> Result<File> {
    let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    retry(|| fs::openat(&above, name, flags, Mode::empty()))
        .map(File::from)
        .map_err(|e| Error::io("", "reopening the file", e.into()))
}

/// Removes a file that was created and is incomplete.
pub(super) fn remove_file(above: impl AsFd, name: &[u8]) -> Result<()> {
    remove(above, name).map_err(|e| Error::io("", "removing the incomplete file", e.into()))
}

fn exists() -> Error {
    Error::usage("already exists in the target").with_remedy(Remedy::Overwrite)
}

/// Returns a path relative to the target, for messages.
pub(super) fn show(dir: &Dir, name: &[u8]) -> String {
    String::from_utf8_lossy(&shortened(&dir.path(name))).into_owned()
}
