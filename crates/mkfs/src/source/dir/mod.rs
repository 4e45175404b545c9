//! Host directory as a source.

mod walk;

pub(crate) use walk::{Outputs, WalkOptions, runs_of};

use super::left_out::LeftOut;
use crate::tree::lossy;
use crate::{Error, Result};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::ffi::CStr;
use std::fmt::Display;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use tuff_store::{PathOpener, retry};

/// Source directory that is open.
pub struct DirSource {
    root: OwnedFd,
    name: PathBuf,
    /// Openers of idle threads.
    openers: Mutex<Vec<PathOpener>>,
    /// Files that cannot be read. `None` if they are errors.
    left_out: Option<LeftOut>,
}

impl DirSource {
    /// Opens a directory as a source.
    pub fn open(path: &Path) -> Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = retry(|| rustix::fs::open(path, flags, Mode::empty()))
            .map_err(|e| Error::io(path.display(), "cannot open the source directory", e.into()))?;
        Ok(Self {
            root,
            name: path.to_owned(),
            openers: Mutex::default(),
            left_out: None,
        })
    }

    /// Adds files that cannot be read to `left_out`, if there is one, instead of failing.
    pub(crate) fn leaving_out(self, left_out: Option<LeftOut>) -> Self {
        Self { left_out, ..self }
    }

    /// True if a path that cannot be read is left out, because of `error`.
    pub(crate) fn leaves_out(&self, path: &[u8], what: impl Display, error: &io::Error) -> bool {
        let left_out = self.left_out.as_ref();
        left_out.is_some_and(|left_out| left_out.take(self.whole_path(path), what, error))
    }

    /// Leaves a file out that has changed, if files may be left out.
    pub(crate) fn leave_out_changed(&self, path: &[u8], how: impl Display) {
        if let Some(left_out) = &self.left_out {
            left_out.add(self.whole_path(path), how);
        }
    }

    /// True if files that cannot be read are left out.
    fn may_leave_out(&self) -> bool {
        self.left_out.is_some()
    }

    /// Opens a regular file in an open directory.
    fn open_named(&self, dir: &OwnedFd, name: &CStr) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        retry(|| rustix::fs::openat(dir, name, flags, Mode::empty()))
    }

    /// True if a path was left out by an attempt to build before this one.
    fn is_left_out(&self, path: &[u8]) -> bool {
        let left_out = self.left_out.as_ref();
        left_out.is_some_and(|left_out| left_out.has(&self.whole_path(path)))
    }

    /// Path of an entry, with the bytes of all names.
    fn whole_path(&self, path: &[u8]) -> Vec<u8> {
        let root = self.name.as_os_str().as_bytes();
        match path {
            path if root == b"/" => [root, path].concat(),
            b"" => root.to_vec(),
            path => [root, b"/", path].concat(),
        }
    }

    /// Name of an entry for messages.
    pub fn display(&self, path: &[u8]) -> String {
        if path.is_empty() {
            return self.name.display().to_string();
        }
        format!("{}/{}", self.name.display(), lossy(path))
    }

    /// Opens a regular file below the root for reading. Does not follow a symbolic link in the last
    /// component.
    pub fn open_file(&self, path: &[u8]) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        // `O_NOATIME` avoids a write per file, but only owners and root may use it.
        let fd = match self.open_at(path, flags | OFlags::NOATIME) {
            Err(Errno::PERM) => self.open_at(path, flags)?,
            other => other?,
        };
        Ok(File::from(fd))
    }

    /// Opens a path of any length.
    fn open_at(&self, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
        let lock = || self.openers.lock().unwrap_or_else(PoisonError::into_inner);
        let mut opener = lock().pop().unwrap_or_default();
        let opened = opener.open(self.root.as_fd(), path, flags);
        lock().push(opener);
        opened
    }
}
