//! Host directory as a source.

mod walk;

pub(crate) use walk::{Outputs, WalkOptions, runs_of};

use crate::tree::lossy;
use crate::{Error, Result};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use tuff_store::retry;

/// Maximum length of a path in one system call. Unit: bytes.
const PATH_PART_MAX: usize = 4000;

/// Source directory that is open.
pub struct DirSource {
    root: OwnedFd,
    name: PathBuf,
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
        })
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

    /// Opens a path of any length in parts, each relative to the one before.
    fn open_at(&self, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
        let mut at: Option<OwnedFd> = None;
        let mut rest = path;
        while rest.len() > PATH_PART_MAX {
            // A component has at most 255 bytes, so there is a slash.
            let cut = rest[..PATH_PART_MAX]
                .iter()
                .rposition(|b| *b == b'/')
                .ok_or(Errno::NAMETOOLONG)?;
            let dir = at.as_ref().map_or(self.root.as_fd(), AsFd::as_fd);
            let piece = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            at = Some(retry(|| {
                rustix::fs::openat(dir, &rest[..cut], piece, Mode::empty())
            })?);
            rest = &rest[cut + 1..];
        }
        let dir = at.as_ref().map_or(self.root.as_fd(), AsFd::as_fd);
        retry(|| {
            rustix::fs::openat(
                dir,
                if rest.is_empty() { b"." } else { rest },
                flags,
                Mode::empty(),
            )
        })
    }
}
