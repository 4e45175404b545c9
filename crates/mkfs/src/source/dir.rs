//! A directory of the host as a source.

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

/// Paths up to this long are handed to the kernel in one piece.
const PATH_PIECE: usize = 4000;

/// An open source directory.
pub struct DirSource {
    root: OwnedFd,
    name: PathBuf,
}

impl DirSource {
    /// Opens a directory.
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

    /// Opens a regular file below the root for reading. Follows no link in the last component.
    pub fn open_file(&self, path: &[u8]) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        // NOATIME is for owners and root only; it spares the source a write per file.
        let fd = match self.open_at(path, flags | OFlags::NOATIME) {
            Err(Errno::PERM) => self.open_at(path, flags)?,
            other => other?,
        };
        Ok(File::from(fd))
    }

    /// Opens `path` however long it is: in pieces, each relative to the one before.
    fn open_at(&self, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
        let mut at: Option<OwnedFd> = None;
        let mut rest = path;
        while rest.len() > PATH_PIECE {
            // A component has at most 255 bytes, so there is a slash.
            let cut = rest[..PATH_PIECE]
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
