//! Host directory as one side of a comparison.

use super::node::Node;
use crate::read::{FileType, Xattr};
use crate::walk::shown;
use crate::{Error, Place, Result};
use rustix::fs::{self, AtFlags, Dir, Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use tuff_store::{PathOpener, retry};

/// Maximum length of an xattr list or value on Linux, in bytes.
const XATTR_MAX: usize = 65536;

/// Tree below an open directory of the host. Caches the handle of the last directory used.
pub struct HostTree {
    name: String,
    root: OwnedFd,
    last: Option<(Vec<u8>, OwnedFd)>,
    opener: PathOpener,
}

impl HostTree {
    /// Opens the root directory of the tree.
    ///
    /// # Errors
    /// Returns `Io` if it cannot be opened.
    pub fn open(path: &Path) -> Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = retry(|| fs::open(path, flags, Mode::empty()));
        let root = root.map_err(|e| Error::io(path.display(), "cannot open", e.into()))?;
        Ok(Self {
            name: path.display().to_string(),
            root,
            last: None,
            opener: PathOpener::default(),
        })
    }

    /// Returns the attributes of the root.
    pub(super) fn root(&self) -> Result<Node> {
        let stat =
            retry(|| fs::fstat(&self.root)).map_err(|e| self.failed(b"", "cannot examine", e))?;
        Ok(node(&stat))
    }

    /// Returns the names in a directory, in bytewise order.
    pub(super) fn names(&mut self, dir: &[u8]) -> Result<Vec<Vec<u8>>> {
        let list = |fd: &OwnedFd| -> Result<Vec<Vec<u8>>, Errno> {
            let mut names = Vec::new();
            for entry in Dir::read_from(fd)? {
                let entry = entry?;
                let name = entry.file_name().to_bytes();
                if name != b"." && name != b".." {
                    names.push(name.to_vec());
                }
            }
            names.sort_unstable();
            Ok(names)
        };
        self.within(dir, |fd| retry(|| list(fd)))
            .map_err(|e| self.failed(dir, "cannot list", e))
    }

    /// Returns the attributes of `name` in the directory `dir`.
    pub(super) fn node(&mut self, dir: &[u8], name: &[u8]) -> Result<Node> {
        self.within(dir, |fd| {
            retry(|| fs::statat(fd, name, AtFlags::SYMLINK_NOFOLLOW))
        })
        .map(|stat| node(&stat))
        .map_err(|e| self.failed(&join(dir, name), "cannot examine", e))
    }

    /// Returns the target of a symlink.
    pub(super) fn target(&mut self, dir: &[u8], name: &[u8]) -> Result<Vec<u8>> {
        self.within(dir, |fd| retry(|| fs::readlinkat(fd, name, Vec::new())))
            .map(std::ffi::CString::into_bytes)
            .map_err(|e| self.failed(&join(dir, name), "cannot read the symlink", e))
    }

    /// Opens a regular file for reading.
    pub(super) fn file(&mut self, dir: &[u8], name: &[u8]) -> Result<File> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        self.within(dir, |fd| {
            retry(|| fs::openat(fd, name, flags, Mode::empty()))
        })
        .map(File::from)
        .map_err(|e| self.failed(&join(dir, name), "cannot open", e))
    }

    /// Returns the xattrs that an image can represent, sorted by name. An empty `name` selects the directory itself.
    pub(super) fn xattrs(&mut self, dir: &[u8], name: &[u8]) -> Result<Vec<Xattr>> {
        // No system call takes a directory handle and a name, so the path goes through the handle.
        let read = |fd: &OwnedFd| {
            let mut path = format!("/proc/self/fd/{}/", fd.as_raw_fd()).into_bytes();
            path.extend_from_slice(if name.is_empty() { b"." } else { name });
            xattrs_at(&path)
        };
        self.within(dir, read)
            .map_err(|e| self.failed(&join(dir, name), "cannot read attributes", e))
    }

    /// Runs `f` with a handle of the directory `dir`.
    fn within<T>(
        &mut self,
        dir: &[u8],
        f: impl FnOnce(&OwnedFd) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        if dir.is_empty() {
            return f(&self.root);
        }
        let last = match self.last.take() {
            Some((path, fd)) if path == dir => (path, fd),
            _ => {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let fd = self.opener.open(self.root.as_fd(), dir, flags)?;
                (dir.to_vec(), fd)
            }
        };
        f(&self.last.insert(last).1)
    }

    fn failed(&self, path: &[u8], what: &str, e: Errno) -> Error {
        Error::io(Place::file(self.place(path)), what, e.into())
    }

    /// Returns a path with the name of the tree, for messages.
    pub(super) fn place(&self, path: &[u8]) -> String {
        format!("{}{}", self.name.trim_end_matches('/'), shown(path))
    }
}

fn xattrs_at(path: &[u8]) -> Result<Vec<Xattr>, Errno> {
    let mut list = vec![0; XATTR_MAX];
    let n = match retry(|| fs::llistxattr(path, &mut list[..])) {
        Ok(n) => n,
        Err(Errno::NOTSUP) => 0,
        Err(e) => return Err(e),
    };
    let mut out = Vec::new();
    for name in list[..n].split(|b| *b == 0) {
        // An xattr outside the namespaces of EROFS has no counterpart in an image.
        if name.is_empty() || tuff_format::xattr::split(name).is_none() {
            continue;
        }
        let mut value = vec![0; XATTR_MAX];
        match retry(|| fs::lgetxattr(path, name, &mut value[..])) {
            Ok(n) => value.truncate(n),
            Err(Errno::NODATA) => continue,
            Err(e) => return Err(e),
        }
        out.push(Xattr {
            name: name.to_vec(),
            value,
        });
    }
    out.sort();
    Ok(out)
}

fn node(stat: &fs::Stat) -> Node {
    // The type bits of a mode have the same values on all systems.
    let mode = stat.st_mode as u16;
    let kind = FileType::from_mode(mode).unwrap_or(FileType::File);
    let device = (fs::major(stat.st_rdev), fs::minor(stat.st_rdev));
    Node {
        kind,
        mode: mode & 0o7777,
        uid: stat.st_uid,
        gid: stat.st_gid,
        mtime: (stat.st_mtime, stat.st_mtime_nsec as u32),
        nlink: nlink_of(stat),
        size: stat.st_size as u64,
        device: matches!(kind, FileType::Char | FileType::Block).then_some(device),
        id: (stat.st_dev, stat.st_ino),
        inode: None,
    }
}

/// The conversion widens on some architectures and is a no-op elsewhere.
#[allow(
    clippy::useless_conversion,
    reason = "useless only where the field is 64 bits wide"
)]
fn nlink_of(stat: &fs::Stat) -> u64 {
    u64::from(stat.st_nlink)
}

fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    let mut path = dir.to_vec();
    crate::walk::push_name(&mut path, name);
    path
}
