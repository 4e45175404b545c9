//! A directory of the host as a source.

use super::{Content, DataRun, Device, Entry, Kind, Meta};
use crate::build::tree::lossy;
use crate::{Error, Result};
use hashbrown::HashMap;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, SeekFrom, Stat};
use rustix::io::Errno;
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

/// Paths up to this long are handed to the kernel in one piece.
const PATH_PIECE: usize = 4000;

/// An open source directory.
pub struct DirSource {
    root: OwnedFd,
    name: PathBuf,
}

/// What to leave out of a walk.
pub struct WalkOptions<'a> {
    /// Called with the path of each entry; true leaves it out, with all below it.
    pub exclude: &'a dyn Fn(&[u8]) -> bool,
    /// Do not enter directories on other filesystems; they stay as empty directories.
    pub one_file_system: bool,
    /// Store extended attributes.
    pub xattrs: bool,
}

impl DirSource {
    /// Opens a directory.
    pub fn open(path: &Path) -> Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(path, flags, Mode::empty())
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
            at = Some(rustix::fs::openat(dir, &rest[..cut], piece, Mode::empty())?);
            rest = &rest[cut + 1..];
        }
        let dir = at.as_ref().map_or(self.root.as_fd(), AsFd::as_fd);
        rustix::fs::openat(
            dir,
            if rest.is_empty() { b"." } else { rest },
            flags,
            Mode::empty(),
        )
    }

    /// The runs of a file that hold data. Where the filesystem cannot tell, all of it.
    fn data_runs(&self, path: &[u8], size: u64) -> io::Result<Vec<DataRun>> {
        let file = self.open_file(path)?;
        let mut runs = Vec::new();
        let mut at = 0;
        while at < size {
            let start = match rustix::fs::seek(&file, SeekFrom::Data(at)) {
                Ok(start) => start,
                Err(Errno::NXIO) => break,
                Err(Errno::INVAL) => at,
                Err(e) => return Err(e.into()),
            };
            let end = match rustix::fs::seek(&file, SeekFrom::Hole(start)) {
                Ok(end) => end.min(size),
                Err(Errno::INVAL) => size,
                Err(e) => return Err(e.into()),
            };
            if start >= size || end <= start {
                break;
            }
            runs.push(DataRun {
                file_offset: start,
                source_offset: start,
                len: end - start,
            });
            at = end;
        }
        Ok(runs)
    }

    /// Visits the root and everything below it, parents first, each directory's names in bytewise order.
    pub fn walk(
        &self,
        options: &WalkOptions<'_>,
        visit: &mut dyn FnMut(Entry) -> Result<()>,
    ) -> Result<()> {
        let fail =
            |path: &[u8], what: &str, e: Errno| Error::io(self.display(path), what, e.into());
        let root = rustix::fs::fstat(&self.root).map_err(|e| fail(b"", "cannot stat", e))?;
        let mut entry = Entry {
            path: Vec::new(),
            kind: Kind::Dir,
            meta: meta(&root),
            xattrs: Vec::new(),
            content: Content::None,
        };
        if options.xattrs {
            entry.xattrs = xattrs_of(self.root.as_fd(), b".", true)
                .map_err(|e| fail(b"", "cannot read attributes", e))?;
        }
        visit(entry)?;
        // First name of each inode that has several.
        let mut links: HashMap<(u64, u64), Vec<u8>> = HashMap::new();
        let mut stack = vec![Vec::new()];
        while let Some(dir_path) = stack.pop() {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let dir = self
                .open_at(&dir_path, flags)
                .map_err(|e| fail(&dir_path, "cannot open directory", e))?;
            let mut names =
                names_of(&dir).map_err(|e| fail(&dir_path, "cannot list directory", e))?;
            names.sort_unstable();
            let before = stack.len();
            for name in names {
                let mut path = dir_path.clone();
                if !path.is_empty() {
                    path.push(b'/');
                }
                path.extend_from_slice(name.as_bytes());
                if (options.exclude)(&path) {
                    continue;
                }
                let stat = match rustix::fs::statat(&dir, &name, AtFlags::SYMLINK_NOFOLLOW) {
                    Ok(stat) => stat,
                    Err(e) => return Err(fail(&path, "vanished or cannot be examined", e)),
                };
                let file_type = FileType::from_raw_mode(stat.st_mode);
                let several = stat.st_nlink > 1 && file_type != FileType::Directory;
                let mut kind = kind_of(&dir, &name, &stat)
                    .map_err(|e| fail(&path, "cannot read symbolic link", e))?;
                if several {
                    match links.get(&(stat.st_dev, stat.st_ino)) {
                        Some(first) => kind = Kind::Hardlink(first.clone()),
                        None => _ = links.insert((stat.st_dev, stat.st_ino), path.clone()),
                    }
                }
                let mut xattrs = Vec::new();
                if options.xattrs && !matches!(kind, Kind::Hardlink(_)) {
                    xattrs = xattrs_of(dir.as_fd(), name.as_bytes(), false)
                        .map_err(|e| fail(&path, "cannot read attributes", e))?;
                }
                if kind == Kind::Dir && !(options.one_file_system && stat.st_dev != root.st_dev) {
                    stack.push(path.clone());
                }
                let content = match kind {
                    Kind::File { size: 0 } => Content::None,
                    // Fewer blocks than its size: it may have holes.
                    Kind::File { size } if (stat.st_blocks as u64).saturating_mul(512) < size => {
                        let runs = self
                            .data_runs(&path, size)
                            .map_err(|e| Error::io(self.display(&path), "cannot read", e))?;
                        if runs.iter().map(|r| r.len).sum::<u64>() < size {
                            Content::Sparse(runs.into())
                        } else {
                            Content::InSource
                        }
                    }
                    Kind::File { .. } => Content::InSource,
                    _ => Content::None,
                };
                visit(Entry {
                    path,
                    kind,
                    meta: meta(&stat),
                    xattrs,
                    content,
                })?;
            }
            stack[before..].reverse();
        }
        Ok(())
    }
}

fn meta(stat: &Stat) -> Meta {
    Meta {
        mode: (stat.st_mode & 0o7777) as u16,
        uid: stat.st_uid,
        gid: stat.st_gid,
        mtime: stat.st_mtime,
        mtime_nsec: stat.st_mtime_nsec as u32,
    }
}

fn names_of(dir: &OwnedFd) -> Result<Vec<CString>, Errno> {
    let mut names = Vec::new();
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            names.push(entry.file_name().to_owned());
        }
    }
    Ok(names)
}

fn kind_of(dir: &OwnedFd, name: &CString, stat: &Stat) -> Result<Kind, Errno> {
    let device = Device {
        major: rustix::fs::major(stat.st_rdev),
        minor: rustix::fs::minor(stat.st_rdev),
    };
    Ok(match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => Kind::Dir,
        FileType::Symlink => {
            Kind::Symlink(rustix::fs::readlinkat(dir, name, Vec::with_capacity(256))?.into_bytes())
        }
        FileType::CharacterDevice => Kind::Char(device),
        FileType::BlockDevice => Kind::Block(device),
        FileType::Fifo => Kind::Fifo,
        FileType::Socket => Kind::Socket,
        FileType::RegularFile | FileType::Unknown => Kind::File {
            size: stat.st_size as u64,
        },
    })
}

/// Names and values of attributes.
type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

/// All attributes of `name` in `dir`, sorted. There is no call that takes a directory and a name, so the path goes
/// through the directory's handle.
fn xattrs_of(dir: BorrowedFd<'_>, name: &[u8], dir_itself: bool) -> Result<Pairs, Errno> {
    let mut path = format!("/proc/self/fd/{}", dir.as_raw_fd()).into_bytes();
    if !dir_itself {
        path.push(b'/');
        path.extend_from_slice(name);
    }
    let list = |buf: &mut [u8]| {
        if dir_itself {
            rustix::fs::listxattr(&path[..], buf)
        } else {
            rustix::fs::llistxattr(&path[..], buf)
        }
    };
    let mut buf = [0u8; 1024];
    let mut big;
    let names: &[u8] = match list(&mut buf[..]) {
        Ok(0) | Err(Errno::NOTSUP) => return Ok(Vec::new()),
        Ok(n) => &buf[..n],
        Err(Errno::RANGE) => {
            big = vec![0u8; 65536];
            let n = list(&mut big[..])?;
            &big[..n]
        }
        Err(e) => return Err(e),
    };
    let mut out = Vec::new();
    for name in names.split(|b| *b == 0).filter(|n| !n.is_empty()) {
        let get = |value: &mut [u8]| {
            if dir_itself {
                rustix::fs::getxattr(&path[..], name, value)
            } else {
                rustix::fs::lgetxattr(&path[..], name, value)
            }
        };
        let mut value = vec![0u8; 256];
        let n = match get(&mut value[..]) {
            Err(Errno::RANGE) => {
                value.resize(65536, 0);
                get(&mut value[..])?
            }
            // Taken away between the two calls, or one that only some may read.
            Err(Errno::NODATA) => continue,
            other => other?,
        };
        value.truncate(n);
        out.push((name.to_vec(), value));
    }
    out.sort_unstable();
    Ok(out)
}
