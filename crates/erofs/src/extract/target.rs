//! The target: directories by handle, names that were checked, nothing followed.
//!
//! Where the tree is visible already, what is not complete has a temporary name: a large file, or a whole new directory, inside
//! of which everything has its final name at once. So a process that is killed leaves nothing in part in a new tree, at the
//! cost of one rename. Only small files right in a directory that was there before have their final name at once: a rename
//! for each would take as long as half of making it.

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

/// Prefix of temporary names. The rest is a hash of the final name, so that the next extraction finds what one that was
/// killed left behind.
const TEMPORARY: &str = ".tuff-extract-";

/// The name of `name` until it is complete.
pub(super) fn temporary_name(name: &[u8]) -> Box<[u8]> {
    let name = format!("{TEMPORARY}{:016x}", xxh3_64(name));
    name.into_bytes().into()
}

/// Files from this size on have a temporary name where the tree is visible. Unit: bytes.
const STAGED_FROM: u64 = 1 << 20;

/// The name of a file in `dir` until it is complete, if that is not its own.
pub(super) fn stage_name(dir: &Dir, name: &[u8], size: u64) -> Option<Box<[u8]>> {
    (size >= STAGED_FROM && dir.is_visible()).then(|| temporary_name(name))
}

/// Refuses a name that would be taken for the temporary one of another entry in a directory that is visible.
pub(super) fn check_name(above: &Dir, name: &[u8]) -> Result<()> {
    if above.is_visible() && name.starts_with(TEMPORARY.as_bytes()) {
        return Err(Error::usage(
            "names like this are those of unfinished files in a directory that exists; extract into a new one",
        ));
    }
    Ok(())
}

/// The target directory.
pub(super) struct Root {
    fd: OwnedFd,
    /// A new target, until it is complete.
    stage: Option<Stage>,
}

/// A new target that has its temporary name.
struct Stage {
    above: OwnedFd,
    temporary: Box<[u8]>,
    path: PathBuf,
}

/// Opens the target, and makes it first if there is none. Symlinks on the way to it are the caller's own. With `reuse` a new one
/// starts with what an extraction that was killed left.
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
        // Shared lock, read by `is_alone` of other extractions. A filesystem without locks has no such protection.
        let _ = fs::flock(&fd, FlockOperation::NonBlockingLockShared);
        return Ok(Root { fd, stage: None });
    };
    let making = |e: Errno| Error::io(path.display(), "making the target directory", e.into());
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty());
    let above = retry(|| fs::openat(CWD, parent.unwrap_or(Path::new(".")), flags, Mode::empty()));
    let above = above.map_err(making)?;
    let temporary = temporary_name(name.as_encoded_bytes());
    let mode = Mode::RWXU | Mode::from_raw_mode(0o055);
    let make = || retry(|| fs::mkdirat(&above, &*temporary, mode));
    make_over_leftover(None, above.as_fd(), &temporary, reuse, make)
        .map_err(|e| e.within(path.display()))?;
    let fd = open_dir(&above, &temporary).map_err(making)?;
    let _ = fs::flock(&fd, FlockOperation::NonBlockingLockShared);
    Ok(Root {
        fd,
        stage: Some(Stage {
            above,
            temporary,
            path: path.to_owned(),
        }),
    })
}

impl Root {
    /// True if it was there before.
    pub(super) fn is_visible(&self) -> bool {
        self.stage.is_none()
    }

    /// Gives a new target its name.
    pub(super) fn finish(&self) -> Result<()> {
        let Some(stage) = &self.stage else {
            return Ok(());
        };
        let name = stage.path.file_name().unwrap_or_default();
        let name = name.as_encoded_bytes();
        give_name(&stage.above, &stage.temporary, name, false)
            .map_err(|e| e.within(stage.path.display()))
    }

    /// True if no other extraction works in the target.
    fn is_alone(&self) -> bool {
        let alone = fs::flock(&self.fd, FlockOperation::NonBlockingLockExclusive);
        let _ = fs::flock(&self.fd, FlockOperation::NonBlockingLockShared);
        alone != Err(Errno::WOULDBLOCK)
    }
}

/// Makes an entry with a temporary name. What an extraction that was killed left under it goes first, or with `reuse` is
/// taken if it is a directory. `root` is none for the target itself.
fn make_over_leftover<T: Default>(
    root: Option<&Root>,
    above: BorrowedFd<'_>,
    temporary: &[u8],
    reuse: bool,
    make: impl Fn() -> rustix::io::Result<T>,
) -> Result<T> {
    let io = |e: Errno| Error::io("", "making it under a temporary name", e.into());
    match make() {
        Ok(made) => return Ok(made),
        Err(Errno::EXIST) => {}
        Err(e) => return Err(io(e)),
    }
    let dir = check_leftover(root, above, temporary)?;
    match dir {
        Some(_) if reuse => return Ok(T::default()),
        Some(_) => {
            // The path through the handle leads nowhere else.
            let shown = String::from_utf8_lossy(temporary);
            let path = format!("/proc/self/fd/{}/{shown}", above.as_raw_fd());
            std::fs::remove_dir_all(path).map_err(|e| {
                let what = format_args!(
                    "removing {shown}, which an extraction that was killed left; remove it by hand"
                );
                Error::io("", what, e)
            })?;
        }
        None => remove(above, temporary).map_err(io)?,
    }
    make().map_err(io)
}

/// Fails if what has a temporary name is still made. The handle of a directory.
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
        let what = format_args!("another extraction makes it, as {shown}");
        let busy = std::io::ErrorKind::WouldBlock.into();
        return Err(Error::io("", what, busy));
    }
    Ok(dir)
}

/// Removes what an extraction that was killed left of a file that is complete by now.
pub(super) fn remove_leftover(root: &Root, above: BorrowedFd<'_>, temporary: &[u8]) -> Result<()> {
    let io = |e: Errno| Error::io("", "removing what was left of the file", e.into());
    if !is_there(above, temporary).map_err(io)?
        || check_leftover(Some(root), above, temporary)?.is_some()
    {
        return Ok(());
    }
    remove(above, temporary).map_err(io)
}

/// Gives what is complete its final name. One that exists is an error, or unlinked first.
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
            // Not every filesystem has that call.
            Err(Errno::INVAL | Errno::NOSYS) => match is_there(above, name)? {
                true => Err(Errno::EXIST),
                false => retry(|| fs::renameat(above, temporary, above, name)),
            },
            named => named,
        }
    };
    // Unlinked first: a rename that replaces a file makes ext4 write what is still in memory.
    create(above, name, overwrite, "giving it its name", rename)
}

/// True if something has the name.
fn is_there(above: impl AsFd, name: &[u8]) -> rustix::io::Result<bool> {
    match retry(|| fs::statat(&above, name, AtFlags::SYMLINK_NOFOLLOW)) {
        Ok(_) => Ok(true),
        Err(Errno::NOENT) => Ok(false),
        Err(e) => Err(e),
    }
}

/// A directory below the target.
pub(super) struct Dir {
    /// Unlike that of any other.
    id: u64,
    /// `None`: the target itself.
    parent: Option<Arc<Dir>>,
    name: Box<[u8]>,
    pub(super) nid: Nid,
    /// It is there.
    made: AtomicBool,
    /// It has its final name, and so have all above it: entries get theirs when they are complete.
    visible: AtomicBool,
    /// It has its temporary name.
    staged: AtomicBool,
}

impl Drop for Dir {
    /// One after the other: a chain of directories may be longer than the stack is deep.
    fn drop(&mut self) {
        let mut next = self.parent.take();
        while let Some(mut dir) = next.and_then(Arc::into_inner) {
            next = dir.parent.take();
        }
    }
}

impl Dir {
    /// The target itself, with the attributes of inode `nid`.
    pub(super) fn top(nid: Nid, root: &Root) -> Arc<Self> {
        Arc::new(Self {
            id: 0,
            parent: None,
            name: Box::new([]),
            nid,
            made: AtomicBool::new(true),
            visible: AtomicBool::new(root.is_visible()),
            staged: AtomicBool::new(false),
        })
    }

    /// A directory in `parent`, not yet made. `name` was checked.
    pub(super) fn child(parent: &Arc<Self>, name: &[u8], nid: Nid) -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Arc::new(Self {
            id: NEXT.fetch_add(1, Relaxed),
            parent: Some(parent.clone()),
            name: name.into(),
            nid,
            made: AtomicBool::new(false),
            visible: AtomicBool::new(false),
            staged: AtomicBool::new(false),
        })
    }

    pub(super) fn is_made(&self) -> bool {
        self.made.load(Relaxed)
    }

    pub(super) fn is_visible(&self) -> bool {
        self.visible.load(Relaxed)
    }

    pub(super) fn is_staged(&self) -> bool {
        self.staged.load(Relaxed)
    }

    /// Path below the target of `name` in this directory. An empty name: of the directory itself.
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

/// Handles of directories, the ones used last. Each thread has its own.
#[derive(Default)]
pub(super) struct Handles {
    /// Latest first.
    open: Vec<(Arc<Dir>, Arc<OwnedFd>)>,
    /// Directories on the way to a deep one, each below the one before, at growing distances from it: they are found again
    /// on the way up, where each step would start at the target otherwise.
    marks: Vec<(Arc<Dir>, Arc<OwnedFd>)>,
}

/// Handles that are kept.
const KEPT: usize = 48;
/// Handles that are kept on the way to deep directories.
const MARKS: usize = 24;

impl Handles {
    /// The handle of a directory that was made. Opened one name after the other from the nearest one at hand, so that
    /// no path is too long and no symlink is followed.
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
                let fd = Arc::new(fd.map_err(|e| Error::io("", "opening the target again", e))?);
                self.keep(dir, fd.clone());
                Ok(fd)
            }
        }
    }

    /// Every so many of `missing` directories become marks: half of the marks that are free are spread over them.
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
            // Those below it are behind, or in other parts of the tree.
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

    /// Makes a directory, and those above it that were not made. `overwrite`: one that is there already will do.
    /// `merge`: so will one that this extraction made. Returns the one that has a temporary name, if one has.
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
            let io = |e: Errno| Error::io(show(dir, &[]), "making the directory", e.into());
            let make = |name: &[u8]| retry(|| fs::mkdirat(&above, name, Mode::RWXU));
            // Directories that become one cannot wait for their name until they are complete.
            let staged = parent.is_visible() && !merge;
            let there = match staged {
                true => is_there(&above, &dir.name).map_err(io)?,
                false => match make(&dir.name) {
                    Ok(()) => false,
                    Err(Errno::EXIST) => true,
                    Err(e) => return Err(io(e)),
                },
            };
            let mut goes_on = false;
            if there {
                if !(overwrite || merge) {
                    return Err(exists());
                }
                let stat = retry(|| fs::statat(&above, &*dir.name, AtFlags::SYMLINK_NOFOLLOW));
                let mode = stat.map_err(io)?.st_mode;
                goes_on = FileType::from_raw_mode(mode) == FileType::Directory;
                if !goes_on {
                    // Also a symlink to a directory: it is not ours to walk through.
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

    /// Gives a directory that is complete its final name, if it has a temporary one.
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

fn open_dir(above: impl AsFd, name: &[u8]) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    retry(|| fs::openat(&above, name, flags, Mode::empty()))
}

/// Makes an entry with `make`; one that exists is an error, or unlinked first. `name` was checked.
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

/// Makes a regular file that was not there.
pub(super) fn create_file(above: impl AsFd, name: &[u8], overwrite: bool) -> Result<File> {
    let make = || new_file(above.as_fd(), name);
    create(above.as_fd(), name, overwrite, "making the file", make).map(File::from)
}

/// Makes a regular file under its temporary name.
pub(super) fn stage_file(root: &Root, above: impl AsFd, temporary: &[u8]) -> Result<File> {
    let make = || new_file(above.as_fd(), temporary).map(Some);
    let made = make_over_leftover(Some(root), above.as_fd(), temporary, false, make)?;
    // Not reused, so it was made.
    made.map(File::from).ok_or_else(exists)
}

fn new_file(above: BorrowedFd<'_>, name: &[u8]) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    retry(|| fs::openat(above, name, flags, Mode::RUSR | Mode::WUSR))
}

/// Opens a regular file that was made and closed.
pub(super) fn reopen_file(above: impl AsFd, name: &[u8]) -> Result<File> {
    let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    retry(|| fs::openat(&above, name, flags, Mode::empty()))
        .map(File::from)
        .map_err(|e| Error::io("", "opening the file again", e.into()))
}

/// Removes a file that was made and is not complete.
pub(super) fn remove_file(above: impl AsFd, name: &[u8]) -> Result<()> {
    remove(above, name).map_err(|e| Error::io("", "removing the incomplete file", e.into()))
}

fn exists() -> Error {
    Error::usage("exists already in the target").with_remedy(Remedy::Overwrite)
}

/// A path below the target, for messages.
pub(super) fn show(dir: &Dir, name: &[u8]) -> String {
    String::from_utf8_lossy(&shortened(&dir.path(name))).into_owned()
}
