//! Atomic outputs of finished images.
//!
//! Invariant: the final name refers either to the previous file or to the complete image, never to a part of it. Where
//! the filesystem supports `O_TMPFILE`, an unfinished image has no name and disappears with the process. Elsewhere it
//! has a temporary name, which remains only if the process is killed. A file that is replaced passes owner, mode and
//! extended attributes on to the new one.
//!
//! Exceptions, because they are written in place:
//!
//! * Block devices, and files of [`Target::InPlace`]: from the first byte on.
//! * Files that a rename cannot replace: one with several hard links, one that is a mount point, one in a directory
//!   without write permission, or one whose owner or attributes the process cannot pass on. The complete image is
//!   copied over the old content, so that only a failure of this copy destroys it.

use crate::host::retry;
use rustix::fs::{AtFlags, CWD, FallocateFlags, FlockOperation, Mode, OFlags, fallocate};
use rustix::io::Errno;
use std::fs::{File, FileType, Metadata, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

/// Destination of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// Path of a file, created or replaced when the image is complete; of an existing block device, written in
    /// place; or of an existing pipe or character device, written when the image is complete.
    Path(PathBuf),
    /// As `Path`, but an existing file is truncated and written in place, as mkfs.erofs does. A failed build leaves a
    /// part of the new image, which has no superblock.
    InPlace(PathBuf),
    /// Standard output, written when the image is complete.
    Stdout,
}

/// Device and inode number of a file.
pub type FileId = (u64, u64);

/// Image or other output under construction.
pub struct Output {
    file: File,
    kind: Kind,
}

enum Kind {
    /// Unnamed file in the directory of its final name.
    Unnamed {
        path: PathBuf,
    },
    /// File with a temporary name in the directory of its final name.
    Named {
        temporary: PathBuf,
        path: PathBuf,
    },
    /// File whose content is replaced by the complete image at the end.
    Spooled {
        over: File,
    },
    Device,
    /// File that is overwritten from the first write on.
    InPlace {
        /// Result of truncating the file: the number of an error.
        truncated: OnceLock<Result<(), i32>>,
    },
    /// File or device that keeps its content and grows.
    Extended {
        /// Original bytes at the start of the file.
        head: Vec<u8>,
        /// Original length of a file. Unit: bytes.
        len: Option<u64>,
        /// Other ranges that were overwritten: positions and original bytes.
        overwritten: Mutex<Vec<(u64, Vec<u8>)>>,
    },
    /// Unnamed file that is copied to its destination at the end.
    Spool {
        to: Box<dyn Write + Send + Sync>,
        /// Identity of the destination, if it is a regular file.
        inode: Option<FileId>,
    },
    /// Unnamed file without a destination.
    Temporary,
    Done,
}

impl Output {
    /// Creates an output without a destination, for [`copy_to`](Self::copy_to).
    pub fn temporary() -> io::Result<Self> {
        let file = anonymous(&std::env::temp_dir())?;
        let kind = Kind::Temporary;
        Ok(Self { file, kind })
    }

    /// Completes the image at a length of `len` bytes and writes it to `to`.
    pub fn copy_to(self, len: u64, to: &mut dyn Write) -> io::Result<()> {
        self.file.set_len(len)?;
        copy(&self.file, len, to)
    }

    /// Creates an output. Temporary data is placed in the directory of the final name, so that the last step is a
    /// rename.
    pub fn create(target: &Target) -> io::Result<Self> {
        match target {
            Target::Stdout => {
                // A redirected standard output is a regular file.
                let stdout = retry(|| rustix::fs::fstat(io::stdout()))?;
                let is_file = rustix::fs::FileType::from_raw_mode(stdout.st_mode).is_file();
                let inode = is_file.then_some((stdout.st_dev, stdout.st_ino));
                Self::spool(io::stdout(), inode)
            }
            Target::Path(path) | Target::InPlace(path) => {
                match retry(|| std::fs::metadata(path)).map(|m| m.file_type()) {
                    Ok(t) if t.is_block_device() => {
                        // Exclusive: Linux refuses a mounted device.
                        let exclusive = OFlags::EXCL.bits() as i32;
                        let mut options = OpenOptions::new();
                        options.read(true).write(true).custom_flags(exclusive);
                        let file = options.open(path)?;
                        let kind = Kind::Device;
                        Ok(Self { file, kind })
                    }
                    Ok(t) if t.is_dir() => Err(io::Error::new(
                        io::ErrorKind::IsADirectory,
                        "is a directory",
                    )),
                    Ok(t) if is_stream(t) => {
                        Self::spool(OpenOptions::new().write(true).open(path)?, None)
                    }
                    Ok(_) if matches!(target, Target::InPlace(_)) => {
                        let file = OpenOptions::new().read(true).write(true).open(path)?;
                        let truncated = OnceLock::new();
                        let kind = Kind::InPlace { truncated };
                        Ok(Self { file, kind })
                    }
                    // Follow a symbolic link, so that its target is replaced and the link stays.
                    Ok(_) => Self::over(&retry(|| std::fs::canonicalize(path))?),
                    Err(e) if e.kind() == io::ErrorKind::NotFound => {
                        Self::replacing(path.clone()).map_err(|e| without_directory(path, e))
                    }
                    Err(e) => Err(e),
                }
            }
        }
    }

    /// Opens a file or block device to append to it. Writes to its first `head` bytes come last, after
    /// [`settle`](Self::settle), and make the appended data valid. A value that is dropped before it is finished
    /// restores the original state. Fails with `WouldBlock` if another process is appending to the file.
    pub fn grow(path: &Path, head: usize) -> io::Result<Self> {
        let is_device = retry(|| std::fs::metadata(path))?
            .file_type()
            .is_block_device();
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        if is_device {
            options.custom_flags(OFlags::EXCL.bits() as i32);
        }
        let file = options.open(path)?;
        let exclusive = FlockOperation::NonBlockingLockExclusive;
        let locked = retry(|| rustix::fs::flock(&file, exclusive));
        locked.map_err(|e| match e {
            Errno::WOULDBLOCK => {
                let what = "another process is writing there";
                io::Error::new(io::ErrorKind::WouldBlock, what)
            }
            e => e.into(),
        })?;
        // Between the two calls another process may have replaced the file.
        if !is_device && file_id(path) != Some(id_of(&retry(|| file.metadata())?)) {
            let what = "another process has replaced the file";
            return Err(io::Error::new(io::ErrorKind::WouldBlock, what));
        }
        let len = if is_device {
            None
        } else {
            Some(retry(|| file.metadata())?.len())
        };
        // Fits: at most `head`.
        let head = len.map_or(head, |len| len.min(head as u64) as usize);
        let mut bytes = vec![0; head];
        file.read_exact_at(&mut bytes, 0)?;
        let kind = Kind::Extended {
            head: bytes,
            len,
            overwritten: Mutex::default(),
        };
        Ok(Self { file, kind })
    }

    /// Creates an output that replaces the file at `path`, which is open as `self`, and starts as a copy of it. The copy
    /// shares the blocks of the file where the filesystem can do that. `None` if a rename cannot replace the file.
    pub fn copy(&self, path: &Path) -> io::Result<Option<Self>> {
        let copy = Self::create(&Target::Path(path.to_owned()))?;
        if !copy.is_atomic() {
            return Ok(None);
        }
        retry(|| io::copy(&mut &self.file, &mut &copy.file))?;
        Ok(Some(copy))
    }

    /// Returns true if the output is a block device.
    pub fn is_device(&self) -> bool {
        matches!(self.kind, Kind::Device | Kind::Extended { len: None, .. })
    }

    /// Returns true if all writes take effect at once when the output is finished.
    pub fn is_atomic(&self) -> bool {
        matches!(self.kind, Kind::Unnamed { .. } | Kind::Named { .. })
    }

    /// Overwrites existing bytes of a file that grows. A value that is dropped before it is finished restores them.
    pub fn overwrite(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        if let Kind::Extended { overwritten, .. } = &self.kind {
            let mut original = vec![0; bytes.len()];
            self.file.read_exact_at(&mut original, offset)?;
            let mut overwritten = overwritten.lock().unwrap_or_else(PoisonError::into_inner);
            overwritten.push((offset, original));
        }
        self.write_at(bytes, offset)
    }

    /// Waits until all writes are on the disk, if they must precede the next ones.
    pub fn settle(&self) -> io::Result<()> {
        match self.kind {
            Kind::Extended { .. } => self.file.sync_data(),
            _ => Ok(()),
        }
    }

    /// Creates an output for an existing file.
    fn over(path: &Path) -> io::Result<Self> {
        let old = retry(|| std::fs::metadata(path))?;
        // A rename takes one name of several.
        if old.nlink() == 1 {
            match Self::replacing(path.to_owned()) {
                Ok(output) if output.inherit(path, &old).is_ok() => return Ok(output),
                Err(e) if !cannot_rename(&e) => return Err(e),
                _ => {}
            }
        }
        let over = OpenOptions::new().write(true).open(path)?;
        let beside = match std::env::var_os("TMPDIR") {
            Some(_) => None,
            None => anonymous(directory(path)).ok(),
        };
        let file = beside.map_or_else(temporary_file, Ok)?;
        let kind = Kind::Spooled { over };
        Ok(Self { file, kind })
    }

    /// Passes owner, extended attributes and mode of the file at `path` on to the output.
    fn inherit(&self, path: &Path, old: &Metadata) -> io::Result<()> {
        let new = retry(|| self.file.metadata())?;
        if (new.uid(), new.gid()) != (old.uid(), old.gid()) {
            retry(|| fchown(&self.file, Some(old.uid()), Some(old.gid())))?;
        }
        copy_xattrs(path, &self.file)?;
        // Last: a change of the owner clears bits of the mode.
        retry(|| self.file.set_permissions(old.permissions()))
    }

    fn replacing(path: PathBuf) -> io::Result<Self> {
        if let Some(file) = unnamed(directory(&path))? {
            let kind = Kind::Unnamed { path };
            return Ok(Self { file, kind });
        }
        Self::named(path)
    }

    fn named(path: PathBuf) -> io::Result<Self> {
        let (file, temporary) = beside(&path, |path| create_new(path, 0o666))?;
        let kind = Kind::Named { temporary, path };
        Ok(Self { file, kind })
    }

    fn spool(to: impl Write + Send + Sync + 'static, inode: Option<FileId>) -> io::Result<Self> {
        let file = temporary_file()?;
        let to = Box::new(to);
        let kind = Kind::Spool { to, inode };
        Ok(Self { file, kind })
    }

    /// Directory for temporary data as large as the output: `TMPDIR` if it is set, or the directory of the file.
    pub fn scratch(&self) -> PathBuf {
        let message = std::env::var_os("TMPDIR").is_some();
        match &self.kind {
            Kind::Unnamed { path } | Kind::Named { path, .. } if !message => {
                directory(path).to_owned()
            }
            _ => std::env::temp_dir(),
        }
    }

    /// Fails if there is no space for an output of `len` bytes that is written in place. The old content then stays.
    pub fn reserve(&self, len: u64) -> io::Result<()> {
        match self.kind {
            Kind::InPlace { .. } => reserve(&self.file, len),
            _ => Ok(()),
        }
    }

    /// Writes all of `bytes` at `offset`.
    pub fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.truncate()?;
        self.file.write_all_at(bytes, offset)
    }

    /// Removes the old content of a file that is written in place, at the first write.
    fn truncate(&self) -> io::Result<()> {
        let Kind::InPlace { truncated } = &self.kind else {
            return Ok(());
        };
        let truncate =
            || retry(|| self.file.set_len(0)).map_err(|e| e.raw_os_error().unwrap_or_default());
        (*truncated.get_or_init(truncate)).map_err(io::Error::from_raw_os_error)
    }

    /// File to read back what was written.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Regular files that this output writes or replaces: the one under construction, and the one with its final
    /// name.
    pub fn file_ids(&self) -> Vec<FileId> {
        let replaced = match &self.kind {
            Kind::Unnamed { path } | Kind::Named { path, .. } => file_id(path),
            Kind::Spool { inode, .. } => *inode,
            Kind::Spooled { over } => retry(|| over.metadata()).ok().map(|m| id_of(&m)),
            Kind::Device
            | Kind::InPlace { .. }
            | Kind::Extended { .. }
            | Kind::Temporary
            | Kind::Done => None,
        };
        let own = retry(|| self.file.metadata()).ok();
        let own = own.filter(Metadata::is_file).map(|m| (m.dev(), m.ino()));
        own.into_iter().chain(replaced).collect()
    }

    /// Completes the image at a length of `len` bytes and gives it its final name. `sync` waits until it is on the
    /// disk.
    pub fn finish(mut self, len: u64, sync: bool) -> io::Result<()> {
        self.truncate()?;
        if !matches!(self.kind, Kind::Device | Kind::Extended { len: None, .. }) {
            self.file.set_len(len)?;
        }
        // Opened before the rename, so that an error changes nothing.
        let mut dir = None;
        if sync && let Kind::Unnamed { path } | Kind::Named { path, .. } = &self.kind {
            self.file.sync_all()?;
            dir = readable(directory(path))?;
        }
        let sync_name = || dir.map_or(Ok(()), |dir| dir.sync_all());
        match &mut self.kind {
            Kind::Unnamed { path } => match name(&self.file, path) {
                Err(e) if cannot_rename(&e) => {
                    copy_over(&self.file, len, &existing(path, e)?, sync)?
                }
                done => done.and_then(|()| sync_name())?,
            },
            Kind::Named { temporary, path } => match retry(|| std::fs::rename(&temporary, &path)) {
                Err(e) if cannot_rename(&e) => {
                    copy_over(&self.file, len, &existing(path, e)?, sync)?;
                    retry(|| std::fs::remove_file(&*temporary))?;
                }
                done => done.and_then(|()| sync_name())?,
            },
            Kind::Spooled { over } => copy_over(&self.file, len, over, sync)?,
            Kind::InPlace { .. } if !sync => {}
            Kind::Device | Kind::InPlace { .. } | Kind::Extended { .. } => self.file.sync_all()?,
            Kind::Spool { to, .. } => copy(&self.file, len, to)?,
            Kind::Temporary | Kind::Done => {}
        }
        self.kind = Kind::Done;
        Ok(())
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        // Nothing to report errors to: the build has failed and reports its own error.
        match &mut self.kind {
            Kind::Named { temporary, .. } => {
                let _ = retry(|| std::fs::remove_file(&*temporary));
            }
            Kind::Extended {
                head,
                len,
                overwritten,
            } => {
                let overwritten = overwritten
                    .get_mut()
                    .unwrap_or_else(PoisonError::into_inner);
                for (offset, original) in overwritten.iter().rev() {
                    let _ = self.file.write_all_at(original, *offset);
                }
                let mut now = vec![0; head.len()];
                if self.file.read_exact_at(&mut now, 0).is_err() || now != *head {
                    let _ = self.file.write_all_at(head, 0);
                }
                let has_grown =
                    |len: u64| retry(|| self.file.metadata()).map_or(true, |m| m.len() != len);
                if let Some(len) = len.filter(|len| has_grown(*len)) {
                    let _ = self.file.set_len(len);
                }
            }
            _ => {}
        }
    }
}

/// Device and inode number of the regular file at `path`. Follows symbolic links.
pub fn file_id(path: &Path) -> Option<FileId> {
    let meta = retry(|| std::fs::metadata(path)).ok()?;
    meta.is_file().then(|| id_of(&meta))
}

fn id_of(meta: &Metadata) -> FileId {
    (meta.dev(), meta.ino())
}

/// True if two paths refer to the same file or block device, or would after creation.
pub fn is_same(a: &Path, b: &Path) -> bool {
    let is_present = |path: &Path| {
        let meta = retry(|| path.metadata()).ok()?;
        let disk = meta.file_type().is_block_device().then(|| meta.rdev());
        Some((disk, disk.map_or((meta.dev(), meta.ino()), |_| (0, 0))))
    };
    // A file that does not exist is identified by its directory and name.
    let named = |path: &Path| {
        let parent = retry(|| directory(path).canonicalize()).ok()?;
        Some(parent.join(path.file_name()?))
    };
    match (is_present(a), is_present(b)) {
        (Some(a), Some(b)) => a == b,
        (None, None) => named(a).is_some_and(|a| named(b) == Some(a)),
        _ => false,
    }
}

/// True for a path that supports only sequential writes: a pipe or character device.
pub fn takes_stream(path: &Path) -> bool {
    retry(|| std::fs::metadata(path)).is_ok_and(|m| is_stream(m.file_type()))
}

fn is_stream(kind: FileType) -> bool {
    !(kind.is_file() || kind.is_dir() || kind.is_block_device())
}

/// Returns true if a file with this error cannot be replaced by a rename, but maybe written.
fn cannot_rename(e: &io::Error) -> bool {
    use io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem, ResourceBusy};
    matches!(
        e.kind(),
        PermissionDenied | ReadOnlyFilesystem | ResourceBusy
    )
}

/// Opens the file that a rename could not replace, which failed with `e`.
fn existing(path: &Path, e: io::Error) -> io::Result<File> {
    OpenOptions::new().write(true).open(path).map_err(|_| e)
}

/// Replaces the content of `to` by the first `len` bytes of `file`. Without space for them the content stays.
fn copy_over(file: &File, len: u64, to: &File, sync: bool) -> io::Result<()> {
    reserve(to, len)?;
    let mut at = 0;
    let mut buf = vec![0; 1 << 20];
    while at < len {
        let n = buf
            .len()
            .min(usize::try_from(len - at).unwrap_or(usize::MAX));
        file.read_exact_at(&mut buf[..n], at)?;
        to.write_all_at(&buf[..n], at)?;
        at += n as u64;
    }
    retry(|| to.set_len(len))?;
    if sync {
        to.sync_all()?;
    }
    Ok(())
}

/// Reserves blocks for the first `len` bytes of a file, whose content stays, where the filesystem can do that.
fn reserve(file: &File, len: u64) -> io::Result<()> {
    if len == 0 {
        return Ok(());
    }
    match retry(|| fallocate(file, FallocateFlags::KEEP_SIZE, 0, len)) {
        Err(e @ (Errno::NOSPC | Errno::DQUOT | Errno::FBIG | Errno::IO)) => Err(e.into()),
        _ => Ok(()),
    }
}

/// Copies the extended attributes of the file at `path`, ACLs included. Attributes that hold a digest or a signature of
/// the content are left out.
fn copy_xattrs(path: &Path, to: &File) -> io::Result<()> {
    let mut names = vec![0; XATTR_MAX];
    let len = match retry(|| rustix::fs::listxattr(path, &mut names[..])) {
        Ok(len) => len,
        Err(Errno::OPNOTSUPP) => return Ok(()),
        Err(e) => return Err(e.into()),
    };
    let names = &names[..len];
    // The default ACL of the directory is not that of the file.
    if !names.split(|b| *b == 0).any(|name| name == ACL.as_bytes()) {
        match retry(|| rustix::fs::fremovexattr(to, ACL)) {
            Ok(()) | Err(Errno::NODATA | Errno::OPNOTSUPP) => {}
            Err(e) => return Err(e.into()),
        }
    }
    let mut value = vec![0; XATTR_MAX];
    for name in names.split(|b| *b == 0).filter(|n| !n.is_empty()) {
        if matches!(name, b"security.ima" | b"security.evm") {
            continue;
        }
        let n = retry(|| rustix::fs::getxattr(path, name, &mut value[..]))?;
        // The new file may have it already: a label by the policy of its directory.
        let mut now = vec![0; n];
        let same = rustix::fs::fgetxattr(to, name, &mut now[..]);
        if same.is_ok_and(|len| len == n && now == value[..n]) {
            continue;
        }
        let create = rustix::fs::XattrFlags::empty();
        retry(|| rustix::fs::fsetxattr(to, name, &value[..n], create))?;
    }
    Ok(())
}

/// Attribute that holds the ACL of a file.
const ACL: &str = "system.posix_acl_access";

/// Largest attribute value and list of names in Linux. Unit: bytes.
const XATTR_MAX: usize = 64 << 10;

/// Copies the first `len` bytes of `file` to `to`.
fn copy(file: &File, len: u64, to: &mut dyn Write) -> io::Result<()> {
    let mut buf = vec![0; 1 << 20];
    let mut at = 0;
    while at < len {
        let n = buf
            .len()
            .min(usize::try_from(len - at).unwrap_or(usize::MAX));
        file.read_exact_at(&mut buf[..n], at)?;
        to.write_all(&buf[..n])?;
        at += n as u64;
    }
    to.flush()
}

/// Creates an unnamed file in the directory for temporary files, which errors name.
fn temporary_file() -> io::Result<File> {
    let dir = std::env::temp_dir();
    anonymous(&dir).map_err(|e| {
        let what = format!("a temporary file in {}: {e}", dir.display());
        io::Error::new(e.kind(), what)
    })
}

/// Creates an unnamed file in `dir`, which disappears when it is closed.
pub fn anonymous(dir: &Path) -> io::Result<File> {
    if let Some(file) = unnamed(dir)? {
        return Ok(file);
    }
    // Nobody else opens it while it has a name.
    let (file, path) = beside(&dir.join("tuff"), |path| create_new(path, 0o600))?;
    retry(|| std::fs::remove_file(&path))?;
    Ok(file)
}

/// Creates an unnamed file in `dir` that can be given a name. `None` if the filesystem does not support that.
fn unnamed(dir: &Path) -> io::Result<Option<File>> {
    // The name is given through /proc, which a bare chroot may lack.
    if !Path::new("/proc/self/fd").exists() {
        return Ok(None);
    }
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    match retry(|| rustix::fs::open(dir, flags, Mode::from_raw_mode(0o666))) {
        Ok(fd) => Ok(Some(fd.into())),
        // Errors of filesystems without `O_TMPFILE`.
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL | Errno::NOSYS) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

/// Gives an unnamed file the name `path`, replacing an existing file.
fn name(file: &File, path: &Path) -> io::Result<()> {
    let link = |to: &Path| {
        let from = format!("/proc/self/fd/{}", file.as_raw_fd());
        retry(|| rustix::fs::linkat(CWD, &*from, CWD, to, AtFlags::SYMLINK_FOLLOW))
            .map_err(io::Error::from)
    };
    match link(path) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
        done => return done,
    }
    // A link cannot replace a file, but a rename can.
    let ((), temporary) = beside(path, link)?;
    retry(|| std::fs::rename(&temporary, path)).inspect_err(|_| {
        // Nothing to report errors to: the first error is returned.
        let _ = retry(|| std::fs::remove_file(&temporary));
    })
}

/// Opens a directory to sync its entries. `None` without read permission.
fn readable(dir: &Path) -> io::Result<Option<File>> {
    match File::open(dir) {
        Ok(dir) => Ok(Some(dir)),
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => Ok(None),
        Err(e) => Err(e),
    }
}

/// Directory that contains `path`.
fn directory(path: &Path) -> &Path {
    path.parent()
        .filter(|p| !p.as_os_str().is_empty())
        .unwrap_or(Path::new("."))
}

/// Names the directory in the error of an output whose directory does not exist.
fn without_directory(path: &Path, e: io::Error) -> io::Error {
    let dir = directory(path);
    if e.kind() != io::ErrorKind::NotFound || dir.exists() {
        return e;
    }
    let what = format!(
        "the directory {} does not exist; create it first",
        dir.display()
    );
    io::Error::new(e.kind(), what)
}

fn create_new(path: &Path, mode: u32) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(path)
}

/// Calls `make` with unused names in the directory of `path` until one succeeds.
fn beside<T>(path: &Path, make: impl Fn(&Path) -> io::Result<T>) -> io::Result<(T, PathBuf)> {
    let name = path
        .file_name()
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "has no file name"))?;
    for n in 0..1000u32 {
        let mut temporary = std::ffi::OsString::from(".");
        // A name has at most 255 bytes, and the temporary one is longer.
        let keep = name.as_encoded_bytes().len().min(200);
        temporary.push(String::from_utf8_lossy(&name.as_encoded_bytes()[..keep]).as_ref());
        temporary.push(format!(".tuff-{}-{n}", std::process::id()));
        let temporary = directory(path).join(temporary);
        match make(&temporary) {
            Ok(made) => return Ok((made, temporary)),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(e),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dir(name: &str) -> PathBuf {
        let dir = tuff_testkit::unused_path(&format!("output-{name}"));
        std::fs::create_dir_all(&dir).unwrap();
        dir
    }

    /// Outputs that replace a file, with and without `O_TMPFILE`.
    fn both(path: &Path) -> [Output; 2] {
        let first = Output::create(&Target::Path(path.to_owned())).unwrap();
        [first, Output::named(path.to_owned()).unwrap()]
    }

    #[test]
    fn an_unfinished_output_leaves_nothing_and_replaces_nothing() {
        let dir = dir("unfinished");
        let path = dir.join("image");
        std::fs::write(&path, "before").unwrap();
        for output in both(&path) {
            output.write_at(b"half", 0).unwrap();
        }
        assert_eq!(std::fs::read(&path).unwrap(), b"before");
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 1);
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn paths_of_one_file_are_the_same() {
        let dir = dir("same");
        let at = |name: &str| dir.join(name);
        std::fs::write(at("a"), "").unwrap();
        std::fs::write(at("b"), "").unwrap();
        std::fs::hard_link(at("a"), at("hard")).unwrap();
        std::os::unix::fs::symlink("a", at("link")).unwrap();
        for (a, b, same) in [
            ("a", "a", true),
            ("a", "./a", true),
            ("a", "hard", true),
            ("a", "link", true),
            ("a", "b", false),
            ("a", "none", false),
            ("none", "./none", true),
            ("none", "nothing", false),
        ] {
            assert_eq!(is_same(&at(a), &at(b)), same, "{a} and {b}");
        }
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn pipes_are_written_and_not_replaced() {
        let dir = dir("pipe");
        let path = dir.join("pipe");
        rustix::fs::mknodat(
            CWD,
            &path,
            rustix::fs::FileType::Fifo,
            Mode::from_raw_mode(0o600),
            0,
        )
        .unwrap();
        let from = path.clone();
        let reader = std::thread::spawn(move || std::fs::read(from).unwrap());
        let output = Output::create(&Target::Path(path.clone())).unwrap();
        output.write_at(b"end", 5).unwrap();
        output.finish(10, true).unwrap();
        assert_eq!(reader.join().unwrap(), b"\0\0\0\0\0end\0\0");
        assert!(std::fs::metadata(&path).unwrap().file_type().is_fifo());
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_finished_output_replaces_the_target_of_a_link() {
        let dir = dir("link");
        std::fs::create_dir(dir.join("there")).unwrap();
        std::fs::write(dir.join("there/image"), "before, and longer").unwrap();
        std::os::unix::fs::symlink("there/image", dir.join("link")).unwrap();
        let output = Output::create(&Target::Path(dir.join("link"))).unwrap();
        output.write_at(b"new", 0).unwrap();
        output.finish(3, true).unwrap();
        assert!(
            std::fs::symlink_metadata(dir.join("link"))
                .unwrap()
                .is_symlink()
        );
        assert_eq!(std::fs::read(dir.join("there/image")).unwrap(), b"new");
        assert_eq!(std::fs::read_dir(dir.join("there")).unwrap().count(), 1);
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_replaced_file_passes_owner_mode_and_attributes_on() {
        use std::os::unix::fs::PermissionsExt;
        let dir = dir("attributes");
        let path = dir.join("image");
        std::fs::write(&path, "before").unwrap();
        let (name, mut value) = ("user.note", [0; 8]);
        let flags = rustix::fs::XattrFlags::empty();
        let has_xattrs = rustix::fs::setxattr(&path, name, b"kept", flags).is_ok();
        let owner = match rustix::process::geteuid().is_root() {
            true => (12, 34),
            false => {
                let meta = path.metadata().unwrap();
                (meta.uid(), meta.gid())
            }
        };
        std::os::unix::fs::chown(&path, Some(owner.0), Some(owner.1)).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o2640)).unwrap();
        let output = Output::create(&Target::Path(path.clone())).unwrap();
        output.write_at(b"after", 0).unwrap();
        output.finish(5, true).unwrap();
        let meta = path.metadata().unwrap();
        assert_eq!((meta.uid(), meta.gid()), owner);
        assert_eq!(meta.mode() & 0o7777, 0o2640);
        if has_xattrs {
            let len = rustix::fs::getxattr(&path, name, &mut value[..]).unwrap();
            assert_eq!(&value[..len], b"kept");
        }
        assert_eq!(std::fs::read(&path).unwrap(), b"after");
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_file_with_several_names_keeps_its_content_until_the_output_is_complete() {
        let dir = dir("names");
        let (path, other) = (dir.join("image"), dir.join("other"));
        std::fs::write(&path, "before, and longer").unwrap();
        std::fs::hard_link(&path, &other).unwrap();
        let create = || Output::create(&Target::Path(path.clone())).unwrap();
        create().write_at(b"half", 0).unwrap();
        assert_eq!(std::fs::read(&other).unwrap(), b"before, and longer");
        let output = create();
        assert!(!output.is_atomic());
        assert!(output.file_ids().contains(&file_id(&other).unwrap()));
        // A hole longer than the copy buffer.
        output.write_at(b"start", 0).unwrap();
        output.write_at(b"end", 5 << 20).unwrap();
        output.finish((5 << 20) + 10, true).unwrap();
        let mut expected = vec![0; (5 << 20) + 10];
        expected[..5].copy_from_slice(b"start");
        expected[5 << 20..][..3].copy_from_slice(b"end");
        assert!(std::fs::read(&other).unwrap() == expected);
        let (meta, found) = (path.metadata().unwrap(), other.metadata().unwrap());
        assert_eq!((meta.ino(), meta.nlink()), (found.ino(), 2));
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 2);
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_file_that_a_rename_cannot_replace_is_overwritten() {
        let dir = dir("no-rename");
        let path = dir.join("image");
        std::fs::write(&path, "before, and longer").unwrap();
        let busy: io::Error = Errno::BUSY.into();
        assert!(cannot_rename(&busy) && !cannot_rename(&Errno::NOSPC.into()));
        let file = create_new(&dir.join("new"), 0o666).unwrap();
        file.write_all_at(b"after", 0).unwrap();
        file.set_len(7).unwrap();
        copy_over(&file, 7, &existing(&path, busy).unwrap(), true).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"after\0\0");
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_file_in_place_loses_its_content_at_the_first_write() {
        let dir = dir("in-place");
        let path = dir.join("image");
        std::fs::write(&path, "before, and longer").unwrap();
        let create = || Output::create(&Target::InPlace(path.clone())).unwrap();
        drop(create());
        assert_eq!(std::fs::read(&path).unwrap(), b"before, and longer");
        let output = create();
        output.write_at(b"end", 4).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"\0\0\0\0end");
        output.finish(9, false).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"\0\0\0\0end\0\0");
        // Without a write, too.
        create().finish(3, true).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"\0\0\0");
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_finished_output_has_its_name_and_length() {
        let dir = dir("finished");
        let path = dir.join("image");
        for (n, output) in both(&path).into_iter().enumerate() {
            output.write_at(b"end", 5 - n as u64).unwrap();
            output.finish(10 - n as u64, false).unwrap();
            assert_eq!(std::fs::read(&path).unwrap(), b"\0\0\0\0\0end\0\0"[n..]);
        }
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 1);
        std::fs::remove_dir_all(dir).unwrap();
    }
}
