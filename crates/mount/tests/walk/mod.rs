//! Comparison of two directories with every reading system call.

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{self as rfs, AtFlags, CWD, FileType, Mode, OFlags, RawDir, SeekFrom, StatxFlags};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fmt::Debug;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use tuff_testkit::Rng;

/// Returns the differences below `a` and `b`, one per line.
pub(crate) fn differences(a: &Path, b: &Path) -> Vec<String> {
    let mut walk = Walk {
        a: a.to_owned(),
        b: b.to_owned(),
        lines: Vec::new(),
        random: Rng::new(7),
    };
    walk.same(Path::new(""), "statfs", |root, _| {
        let s = rfs::statvfs(root)?;
        Ok((
            s.f_bsize,
            s.f_frsize,
            s.f_blocks,
            s.f_bfree,
            s.f_bavail,
            s.f_files,
            s.f_ffree,
            s.f_namemax,
        ))
    });
    let mut todo = vec![PathBuf::new()];
    while let Some(path) = todo.pop() {
        todo.extend(walk.node(&path));
    }
    walk.lines
}

struct Walk {
    a: PathBuf,
    b: PathBuf,
    lines: Vec<String>,
    random: Rng,
}

/// Name, inode number, type and offset of an entry.
type Listed = (Vec<u8>, u64, FileType, u64);

impl Walk {
    /// Runs a call on both sides. Returns the result of the first if they agree.
    fn same<T: PartialEq + Debug>(
        &mut self,
        path: &Path,
        what: &str,
        ask: impl Fn(&Path, bool) -> Result<T, Errno>,
    ) -> Option<T> {
        let full = |root: &Path| {
            if path.as_os_str().is_empty() {
                root.to_owned()
            } else {
                root.join(path)
            }
        };
        let (a, b) = (ask(&full(&self.a), true), ask(&full(&self.b), false));
        if a != b {
            let show = |x| {
                let mut text = format!("{x:?}");
                text.truncate(300);
                text
            };
            self.lines.push(format!(
                "{}: {what}: {} and {}",
                path.display(),
                show(a),
                show(b)
            ));
            return None;
        }
        a.ok()
    }

    /// Compares one node. Returns the paths below it.
    fn node(&mut self, path: &Path) -> Vec<PathBuf> {
        let stat = self.same(path, "stat", |full, _| stat(full));
        self.xattrs(path);
        let Some(kind) = stat.map(|s| FileType::from_raw_mode(s[1] as _)) else {
            return Vec::new();
        };
        match kind {
            FileType::Directory => return self.dir(path),
            FileType::Symlink => {
                self.same(path, "target", |full, _| {
                    rfs::readlinkat(CWD, full, Vec::new()).map(|t| t.into_bytes())
                });
            }
            FileType::RegularFile => self.file(path),
            _ => {}
        }
        Vec::new()
    }

    fn xattrs(&mut self, path: &Path) {
        let names = self.same(path, "names of attributes", |full, _| {
            let mut names = vec![0u8; 1 << 16];
            let n = rfs::llistxattr(full, &mut names[..])?;
            names.truncate(n);
            Ok(names)
        });
        let names = names.unwrap_or_default();
        // A sample of the nodes without attributes is enough.
        if names.is_empty() && self.random.below_u64(16) > 0 {
            return;
        }
        let names = names.split(|b| *b == 0).filter(|n| !n.is_empty());
        let absent = [
            &b"user.absent"[..],
            b"trusted.absent",
            b"security.absent",
            b"system.posix_acl_access",
            b"system.posix_acl_default",
            b"foreign.absent",
        ];
        for name in names.map(<[u8]>::to_vec).chain(absent.map(<[u8]>::to_vec)) {
            for room in [0, 1, 1 << 16] {
                self.same(
                    path,
                    &format!("attribute {}", name.escape_ascii()),
                    |full, _| {
                        let mut value = vec![0u8; room];
                        let n = rfs::lgetxattr(full, &*name, &mut value[..])?;
                        value.truncate(n);
                        Ok((n, value))
                    },
                );
            }
        }
    }

    fn dir(&mut self, path: &Path) -> Vec<PathBuf> {
        // With small and large buffers.
        self.same(path, "listing in small pieces", |full, _| {
            list(&open(full)?, 600)
        });
        let all = self.same(path, "listing", |full, _| list(&open(full)?, 1 << 16));
        let all = all.unwrap_or_default();
        for _ in 0..6 {
            let Some((.., place)) = all.get(self.random.below_u64(all.len() as u64) as usize)
            else {
                break;
            };
            self.same(path, "listing from a place", |full, _| {
                let dir = open(full)?;
                rfs::seek(&dir, SeekFrom::Start(*place))?;
                list(&dir, 1 << 16)
            });
        }
        self.same(path, "a name that is not there", |full, _| {
            stat(&full.join("not there"))
        });
        let names = all
            .iter()
            .map(|(name, ..)| name)
            .filter(|n| !matches!(&n[..], b"." | b".."));
        names
            .map(|name| path.join(OsStr::from_bytes(name)))
            .collect()
    }

    fn file(&mut self, path: &Path) {
        let size = self.same(path, "content", |full, _| {
            let bytes =
                std::fs::read(full).map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))?;
            Ok((bytes.len() as u64, hash(&bytes)))
        });
        let Some((size, _)) = size else { return };
        // A sample of the empty files is enough.
        if size == 0 && self.random.below_u64(32) > 0 {
            return;
        }
        let mut places = vec![
            0,
            1,
            size / 2,
            size.saturating_sub(1),
            size,
            size + 1,
            size + 5000,
        ];
        for _ in 0..6 {
            places.push(self.random.below_u64(size + 1));
        }
        for at in &places {
            for from in [SeekFrom::Data(*at), SeekFrom::Hole(*at)] {
                self.same(path, &format!("{from:?}"), |full, _| {
                    rfs::seek(&open(full)?, from)
                });
            }
        }
        // Direct reads bypass the page cache: the server receives exactly these requests.
        let lens = [1, 511, 4096, 4097, 65_536, 200_000, (1 << 20) + 3];
        for at in &places {
            let len = lens[self.random.below_u64(lens.len() as u64) as usize];
            for direct in [false, true] {
                self.same(
                    path,
                    &format!("{len} bytes at {at}, direct {direct}"),
                    |full, kernel| {
                        let flags = if direct && !kernel {
                            OFlags::DIRECT
                        } else {
                            OFlags::empty()
                        };
                        let file = rfs::open(full, flags | OFlags::CLOEXEC, Mode::empty())?;
                        Ok(hash(&read_at(&file, *at, len)?))
                    },
                );
            }
        }
    }
}

/// All fields that both kinds of mounts support.
fn stat(path: &Path) -> Result<Vec<i128>, Errno> {
    let s = rfs::statx(
        CWD,
        path,
        AtFlags::SYMLINK_NOFOLLOW,
        StatxFlags::BASIC_STATS,
    )?;
    let time = |t: rfs::StatxTimestamp| [i128::from(t.tv_sec), i128::from(t.tv_nsec)];
    let mut out: Vec<i128> = vec![
        s.stx_ino.into(),
        s.stx_mode.into(),
        s.stx_nlink.into(),
        s.stx_uid.into(),
        s.stx_gid.into(),
        s.stx_size.into(),
        s.stx_blocks.into(),
        s.stx_blksize.into(),
        s.stx_rdev_major.into(),
        s.stx_rdev_minor.into(),
    ];
    for t in [s.stx_atime, s.stx_mtime, s.stx_ctime] {
        out.extend(time(t));
    }
    Ok(out)
}

fn open(path: &Path) -> Result<OwnedFd, Errno> {
    rfs::open(path, OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty())
}

/// Lists from the current offset to the end.
fn list(dir: &OwnedFd, room: usize) -> Result<Vec<Listed>, Errno> {
    let mut out = Vec::new();
    let mut buf = vec![MaybeUninit::uninit(); room];
    let mut entries = RawDir::new(dir, &mut buf);
    while let Some(entry) = entries.next() {
        let entry = entry?;
        let name = entry.file_name().to_bytes().to_vec();
        out.push((
            name,
            entry.ino(),
            entry.file_type(),
            entry.next_entry_cookie(),
        ));
    }
    Ok(out)
}

fn read_at(file: impl AsFd, at: u64, len: usize) -> Result<Vec<u8>, Errno> {
    let mut buf = vec![0; len];
    let mut n = 0;
    while n < len {
        match rustix::io::pread(&file, &mut buf[n..], at + n as u64)? {
            0 => break,
            m => n += m,
        }
    }
    buf.truncate(n);
    Ok(buf)
}

fn hash(bytes: &[u8]) -> u64 {
    use std::hash::{DefaultHasher, Hasher};
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}

/// Reads random ranges of all files below `b` from several threads, half of them directly, and compares them with
/// `a`.
pub(crate) fn parallel_readers(a: &Path, b: &Path, threads: u64) {
    let mut files = Vec::new();
    let mut todo = vec![PathBuf::new()];
    while let Some(path) = todo.pop() {
        for entry in std::fs::read_dir(a.join(&path)).unwrap() {
            let entry = entry.unwrap();
            let below = path.join(entry.file_name());
            let kind = entry.file_type().unwrap();
            if kind.is_dir() {
                todo.push(below);
            } else if kind.is_file() && entry.metadata().unwrap().len() > 0 {
                files.push((below, entry.metadata().unwrap().len()));
            }
        }
    }
    files.sort();
    std::thread::scope(|scope| {
        for n in 0..threads {
            let files = &files;
            scope.spawn(move || {
                let mut random = Rng::new(n);
                for _ in 0..60 {
                    let (path, size) = &files[random.below_u64(files.len() as u64) as usize];
                    let (at, len) = (
                        random.below_u64(*size),
                        1 + random.below_u64(100_000) as usize,
                    );
                    let flags = if n % 2 == 0 {
                        OFlags::DIRECT
                    } else {
                        OFlags::empty()
                    };
                    let read = |root: &Path, flags| {
                        let file = rfs::open(root.join(path), flags, Mode::empty()).unwrap();
                        read_at(file, at, len).unwrap()
                    };
                    let (x, y) = (read(a, OFlags::empty()), read(b, flags));
                    assert!(x == y, "{}: {len} bytes at {at}", path.display());
                }
            });
        }
    });
}
