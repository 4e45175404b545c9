//! The target: directories by handle, names that were checked, nothing followed.

use crate::{Error, Result};
use rustix::fs::{self, AtFlags, CWD, FileType, Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use tuff_format::Nid;

/// The handle of the target directory.
pub(super) struct Root(OwnedFd);

/// Opens the target, and makes it first if there is none. Symlinks on the way to it are the caller's own.
pub(super) fn open_target(path: &Path) -> Result<Root> {
    let shown = path.display();
    match fs::mkdir(path, Mode::RWXU | Mode::from_raw_mode(0o055)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(e) => return Err(Error::io(shown, "making the target directory", e.into())),
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let fd = fs::openat(CWD, path, flags, Mode::empty());
    Ok(Root(fd.map_err(|e| {
        Error::io(shown, "opening the target directory", e.into())
    })?))
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
    pub(super) fn top(nid: Nid) -> Arc<Self> {
        Arc::new(Self {
            id: 0,
            parent: None,
            name: Box::new([]),
            nid,
            made: AtomicBool::new(true),
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
        })
    }

    pub(super) fn is_made(&self) -> bool {
        self.made.load(Relaxed)
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
}

/// Handles that are kept.
const KEPT: usize = 48;

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
        for dir in missing.into_iter().rev() {
            let above = fd.as_ref().map_or(root.0.as_fd(), |fd| fd.as_fd());
            let next = open_dir(above, &dir.name)
                .map_err(|e| Error::io(show(dir, &[]), "opening the directory", e.into()))?;
            let next = Arc::new(next);
            self.keep(dir, next.clone());
            fd = Some(next);
        }
        match fd {
            Some(fd) => Ok(fd),
            None => {
                let fd = root.0.try_clone();
                let fd = Arc::new(fd.map_err(|e| Error::io("", "opening the target again", e))?);
                self.keep(dir, fd.clone());
                Ok(fd)
            }
        }
    }

    fn find(&mut self, dir: &Arc<Dir>) -> Option<Arc<OwnedFd>> {
        let at = self.open.iter().position(|(d, _)| d.id == dir.id)?;
        self.open[..=at].rotate_right(1);
        Some(self.open[0].1.clone())
    }

    fn keep(&mut self, dir: &Arc<Dir>, fd: Arc<OwnedFd>) {
        self.open.truncate(KEPT - 1);
        self.open.insert(0, (dir.clone(), fd));
    }

    /// Makes a directory, and those above it that were not made. `may_exist`: one that is there already will do.
    pub(super) fn make(&mut self, root: &Root, dir: &Arc<Dir>, may_exist: bool) -> Result<()> {
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
            let above = self.get(root, parent)?;
            let io = |e: Errno| Error::io(show(dir, &[]), "making the directory", e.into());
            match fs::mkdirat(&above, &*dir.name, Mode::RWXU) {
                Ok(()) => {}
                Err(Errno::EXIST) if may_exist => {
                    let stat = fs::statat(&above, &*dir.name, AtFlags::SYMLINK_NOFOLLOW);
                    let mode = stat.map_err(io)?.st_mode;
                    if FileType::from_raw_mode(mode) != FileType::Directory {
                        // Also a symlink to a directory: it is not ours to walk through.
                        remove(above.as_fd(), &dir.name).map_err(io)?;
                        fs::mkdirat(&above, &*dir.name, Mode::RWXU).map_err(io)?;
                    }
                }
                Err(Errno::EXIST) => return Err(exists()),
                Err(e) => return Err(io(e)),
            }
            dir.made.store(true, Relaxed);
        }
        Ok(())
    }
}

fn open_dir(above: impl AsFd, name: &[u8]) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    fs::openat(above, name, flags, Mode::empty())
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
    fs::unlinkat(above, name, AtFlags::empty())
}

/// Makes a regular file that was not there.
pub(super) fn create_file(above: impl AsFd, name: &[u8], overwrite: bool) -> Result<File> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let make = || fs::openat(above.as_fd(), name, flags, Mode::RUSR | Mode::WUSR);
    create(above.as_fd(), name, overwrite, "making the file", make).map(File::from)
}

/// Opens a regular file that was made and closed.
pub(super) fn reopen_file(above: impl AsFd, name: &[u8]) -> Result<File> {
    let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    fs::openat(above, name, flags, Mode::empty())
        .map(File::from)
        .map_err(|e| Error::io("", "opening the file again", e.into()))
}

/// Removes a file that was made and is not complete.
pub(super) fn remove_file(above: impl AsFd, name: &[u8]) -> Result<()> {
    remove(above, name).map_err(|e| Error::io("", "removing the incomplete file", e.into()))
}

fn exists() -> Error {
    Error::usage("exists already in the target; ask for overwriting to replace it")
}

/// A path below the target, for messages.
pub(super) fn show(dir: &Dir, name: &[u8]) -> String {
    String::from_utf8_lossy(&dir.path(name)).into_owned()
}
