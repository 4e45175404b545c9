//! Mounting and unmounting: with mount(2) as root, with `fusermount3` or the program that `FUSERMOUNT_PROG` names for all other users.

use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, UnmountFlags, fsconfig_create,
    fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen,
};
use std::ffi::{CString, OsString};
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Filesystem type in `mount` and `/proc/mounts`.
pub const FSTYPE: &str = "fuse.tuff";
/// Filesystem type of a mount that has the block device of its source.
pub const FSTYPE_BLOCK: &str = "fuseblk.tuff";
/// Block size of such a mount. Unit: bytes.
const BLOCK_SIZE: u32 = 4096;

/// Options of a mount.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// Device name that `mount` shows.
    pub source: PathBuf,
    /// Grants access to other users. The kernel checks permissions in either case.
    pub allow_other: bool,
    /// Flags of mount(2), such as "nosuid".
    pub flags: MountFlags,
    /// True if the mount has the block device `source`. Needs root, and a kernel with fuseblk. Then `sync` and `syncfs` reach the
    /// server, and umount(8) waits for it.
    pub has_block_device: bool,
}

/// A mount named "tuff" for this user alone, without set-user-id programs and devices.
impl Default for MountOptions {
    fn default() -> Self {
        Self {
            source: "tuff".into(),
            allow_other: false,
            flags: MountFlags::NOSUID | MountFlags::NODEV,
            has_block_device: false,
        }
    }
}

/// Mounted connection. Dropping it does not unmount: see [`detach`].
pub struct Mountpoint {
    /// Descriptor of the FUSE connection.
    pub fuse: OwnedFd,
    /// Directory of the mount: absolute, without symlinks.
    pub dir: PathBuf,
}

/// Mounts a new read-only connection at `dir`, which must exist.
///
/// # Errors
/// Names the step that failed.
pub fn attach(dir: &Path, options: &MountOptions) -> io::Result<Mountpoint> {
    attach_as(dir, options, true)
}

/// Mounts a new writable connection at `dir`, which must exist.
///
/// # Errors
/// As [`attach`].
pub fn attach_writable(dir: &Path, options: &MountOptions) -> io::Result<Mountpoint> {
    attach_as(dir, options, false)
}

fn attach_as(dir: &Path, options: &MountOptions, read_only: bool) -> io::Result<Mountpoint> {
    let say = |what: String| move |e: io::Error| io::Error::new(e.kind(), format!("{what}: {e}"));
    let dir = std::fs::canonicalize(dir).map_err(say(dir.display().to_string()))?;
    let is_dir = std::fs::metadata(&dir).is_ok_and(|m| m.is_dir());
    if !is_dir {
        let what = format!("{}: not a directory", dir.display());
        return Err(io::Error::new(io::ErrorKind::NotADirectory, what));
    }
    let fuse = if rustix::process::geteuid().is_root() {
        direct(&dir, options, read_only)?
    } else {
        through_helper(&dir, options, read_only)?
    };
    Ok(Mountpoint { fuse, dir })
}

fn open_device() -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    rustix::fs::open("/dev/fuse", flags, Mode::empty())
        .map_err(|e| named(e, "/dev/fuse (is the module fuse loaded?)"))
}

/// Mounts a new read-only connection that no directory shows, for the kernel and for child processes. Needs root.
///
/// Returns its root directory too. The connection ends when that and all files opened below it are closed.
///
/// # Errors
/// Names the step that failed.
pub fn attach_nowhere(source: &Path) -> io::Result<(Mountpoint, OwnedFd)> {
    let fuse = open_device()?;
    let mounted = || {
        let fs = fsopen("fuse", FsOpenFlags::FSOPEN_CLOEXEC)?;
        let number = |n: u32| n.to_string();
        fsconfig_set_string(&fs, "source", source)?;
        fsconfig_set_string(&fs, "subtype", "tuff")?;
        fsconfig_set_string(&fs, "fd", fuse.as_raw_fd().to_string())?;
        fsconfig_set_string(&fs, "rootmode", "40000")?;
        fsconfig_set_string(&fs, "user_id", number(rustix::process::getuid().as_raw()))?;
        fsconfig_set_string(&fs, "group_id", number(rustix::process::getgid().as_raw()))?;
        fsconfig_set_flag(&fs, "ro")?;
        fsconfig_create(&fs)?;
        let attr = MountAttrFlags::MOUNT_ATTR_RDONLY
            | MountAttrFlags::MOUNT_ATTR_NOSUID
            | MountAttrFlags::MOUNT_ATTR_NODEV;
        fsmount(&fs, FsMountFlags::FSMOUNT_CLOEXEC, attr)
    };
    let root = mounted().map_err(|e| named(e, "mounting an export"))?;
    let dir = format!("/proc/self/fd/{}", root.as_raw_fd()).into();
    Ok((Mountpoint { fuse, dir }, root))
}

fn direct(dir: &Path, options: &MountOptions, read_only: bool) -> io::Result<OwnedFd> {
    let fuse = open_device()?;
    let (uid, gid) = (rustix::process::getuid(), rustix::process::getgid());
    let mut data = format!(
        "fd={},rootmode=40000,user_id={},group_id={},default_permissions",
        fuse.as_raw_fd(),
        uid.as_raw(),
        gid.as_raw()
    );
    if options.allow_other {
        data.push_str(",allow_other");
    }
    let mut fstype = FSTYPE;
    if options.has_block_device {
        fstype = FSTYPE_BLOCK;
        data.push_str(&format!(",blksize={BLOCK_SIZE}"));
    }
    let data = CString::new(data).map_err(io::Error::other)?;
    let access = if read_only {
        MountFlags::RDONLY
    } else {
        MountFlags::empty()
    };
    let flags = options.flags | access;
    rustix::mount::mount(&options.source, dir, fstype, flags, Some(data.as_c_str()))
        .map_err(|e| named(e, &format!("mounting on {}", dir.display())))?;
    Ok(fuse)
}

/// Program that mounts for users without privileges.
const HELPER: &str = "fusermount3";
/// Environment variable that names another one, as for libfuse.
const HELPER_VARIABLE: &str = "FUSERMOUNT_PROG";

fn helper() -> OsString {
    let named = std::env::var_os(HELPER_VARIABLE).filter(|name| !name.is_empty());
    named.unwrap_or_else(|| HELPER.into())
}

/// Mounts with `fusermount3`, which sends the connection over a socket. The helper inherits the socket as its
/// standard input.
fn through_helper(dir: &Path, options: &MountOptions, read_only: bool) -> io::Result<OwnedFd> {
    let (ours, theirs) = UnixStream::pair()?;
    let mut text = format!(
        "{},default_permissions,subtype=tuff,fsname={}",
        if read_only { "ro" } else { "rw" },
        escaped(&options.source.to_string_lossy())
    );
    for (flag, name) in FLAG_NAMES {
        // The helper adds nosuid and nodev.
        if options.flags.contains(*flag) && !matches!(*name, "nosuid" | "nodev") {
            text.push(',');
            text.push_str(name);
        }
    }
    if options.allow_other {
        text.push_str(",allow_other");
    }
    let helper = helper();
    let mut child = Command::new(&helper)
        .arg("-o")
        .arg(&text)
        .arg("--")
        .arg(dir)
        .env("_FUSE_COMMFD", "0")
        .stdin(Stdio::from(rustix::fd::OwnedFd::from(theirs)))
        .spawn()
        .map_err(|e| {
            io::Error::new(
                e.kind(),
                match helper == HELPER {
                    true => format!("{HELPER}: {e}; install the package fuse3, or mount as root"),
                    false => format!("{}, of {HELPER_VARIABLE}: {e}", helper.display()),
                },
            )
        })?;
    let received = receive(&ours);
    let status = child.wait()?;
    match received? {
        Some(fuse) => Ok(fuse),
        None => Err(io::Error::other(format!(
            "{} did not mount on {} ({status})",
            helper.display(),
            dir.display()
        ))),
    }
}

/// Receives the descriptor that accompanies one byte. Returns None if the peer closes the socket without one.
fn receive(socket: &UnixStream) -> io::Result<Option<OwnedFd>> {
    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut byte)];
    recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let fuse = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    Ok(fuse)
}

/// Flags of mount(2) and the names of their options.
pub const FLAG_NAMES: &[(MountFlags, &str)] = &[
    (MountFlags::NOSUID, "nosuid"),
    (MountFlags::NODEV, "nodev"),
    (MountFlags::NOEXEC, "noexec"),
    (MountFlags::NOATIME, "noatime"),
    (MountFlags::SYNCHRONOUS, "sync"),
    (MountFlags::DIRSYNC, "dirsync"),
];

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace(',', "\\,")
}

fn named(e: Errno, what: &str) -> io::Error {
    let e = io::Error::from(e);
    io::Error::new(e.kind(), format!("{what}: {e}"))
}

/// Behaviour of an unmount while the mount is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detach {
    /// Fails with `ResourceBusy` while the mount is in use.
    Now,
    /// Removes the mount from the tree at once. Open files stay usable.
    Lazily,
}

/// Unmounts `dir`, even if its server is dead.
///
/// # Errors
/// Fails if `dir` is busy or not a mount point, or if the helper fails.
pub fn detach(dir: &Path, how: Detach) -> io::Result<()> {
    if rustix::process::geteuid().is_root() {
        let flags = match how {
            Detach::Now => UnmountFlags::NOFOLLOW,
            Detach::Lazily => UnmountFlags::NOFOLLOW | UnmountFlags::DETACH,
        };
        return Ok(rustix::mount::unmount(dir, flags)?);
    }
    let mut command = Command::new(helper());
    command.args(if how == Detach::Lazily {
        &["-u", "-z"][..]
    } else {
        &["-u"]
    });
    let out = command.arg("--").arg(dir).stdin(Stdio::null()).output()?;
    if out.status.success() {
        return Ok(());
    }
    let printed = String::from_utf8_lossy(&out.stderr).trim().to_owned();
    let kind = if printed.contains("busy") {
        io::ErrorKind::ResourceBusy
    } else {
        io::ErrorKind::Other
    };
    Err(io::Error::new(kind, printed))
}

/// Line of the mount table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mounted {
    /// Directory of the mount.
    pub dir: PathBuf,
    /// Filesystem type, such as `fuse.tuff`.
    pub fstype: String,
    /// Device name of the mount.
    pub source: PathBuf,
    /// Device number, major and minor.
    pub device: (u32, u32),
    /// User who mounted, if the filesystem has one, as FUSE has.
    pub user: Option<u32>,
}

impl Mounted {
    /// Returns true if a server of tuff serves the mount.
    pub fn is_served(&self) -> bool {
        [FSTYPE, FSTYPE_BLOCK].contains(&&*self.fstype)
    }
}

/// Finds the visible mount at `dir`, which is absolute and without symlinks. Returns None if it is not a mount
/// point.
///
/// Reads the kernel's table and not the directory, so it works when the server is dead.
///
/// # Errors
/// Fails if the table cannot be read.
pub fn find(dir: &Path) -> io::Result<Option<Mounted>> {
    // The last of several mounts on one directory is the visible one.
    Ok(mounts()?.into_iter().rfind(|m| m.dir == dir))
}

/// Returns all mounts of this mount namespace.
///
/// # Errors
/// Fails if the table cannot be read.
pub fn mounts() -> io::Result<Vec<Mounted>> {
    let table = std::fs::read("/proc/self/mountinfo")?;
    Ok(parse_mounts(&table).collect())
}

/// Returns the mounts in the text of a `mountinfo` file.
pub(crate) fn parse_mounts(table: &[u8]) -> impl Iterator<Item = Mounted> {
    table.split(|b| *b == b'\n').filter_map(mountinfo)
}

/// Parses a line such as `36 35 98:0 /root /dir rw,noatime master:1 - fuse.tuff source rw`.
fn mountinfo(line: &[u8]) -> Option<Mounted> {
    let mut words = line.split(|b| *b == b' ');
    let device = words.nth(2)?;
    let dir = words.nth(1)?;
    let mut rest = words.skip_while(|w| *w != b"-");
    let (fstype, source) = (rest.nth(1)?, rest.next()?);
    let options = String::from_utf8_lossy(rest.next().unwrap_or_default());
    let user = options.split(',').find_map(|o| o.strip_prefix("user_id="));
    let device = std::str::from_utf8(device).ok()?.split_once(':')?;
    Some(Mounted {
        dir: PathBuf::from(std::ffi::OsStr::from_bytes(&unescape(dir))),
        fstype: String::from_utf8_lossy(fstype).into_owned(),
        source: PathBuf::from(std::ffi::OsStr::from_bytes(&unescape(source))),
        device: (device.0.parse().ok()?, device.1.parse().ok()?),
        user: user.and_then(|user| user.parse().ok()),
    })
}

/// Decodes spaces, tabs, newlines and backslashes, which the table encodes as three octal digits.
fn unescape(word: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(word.len());
    let mut rest = word;
    while let Some((first, tail)) = rest.split_first() {
        let code = tail.get(..3).and_then(|d| std::str::from_utf8(d).ok());
        let code = code.and_then(|d| u8::from_str_radix(d, 8).ok());
        match (first, code) {
            (b'\\', Some(byte)) => {
                out.push(byte);
                rest = &tail[3..];
            }
            _ => {
                out.push(*first);
                rest = tail;
            }
        }
    }
    out
}

/// Raises the kernel's readahead of the mount at `dir` to three requests through io_uring, or two through the device. Returns it. Unit:
/// KiB.
///
/// A thread on another processor then prepares the next request while the client consumes the last one. Needs root.
///
/// # Errors
/// Fails if the kernel does not permit it.
pub fn raise_read_ahead(dir: &Path, rings: bool) -> io::Result<u32> {
    let (major, minor) = device_known(dir)?;
    let name = |suffix| format!("/sys/class/bdi/{major}:{minor}{suffix}/read_ahead_kb");
    // Without the suffix, this is the readahead of the block device. No other mount has its number.
    let of_block_device = name("-fuseblk");
    let path = match Path::new(&of_block_device).exists() {
        true => of_block_device,
        false => name(""),
    };
    let kb = if rings { 1536 } else { 2048 };
    std::fs::write(path, kb.to_string()).map(|()| kb)
}

/// Returns the device number of the filesystem at `dir` without a request to its server.
///
/// A server that is killed while it waits for its own reply in a ring would never end.
///
/// # Errors
/// Fails if there is no such directory.
pub fn device_known(dir: &Path) -> io::Result<(u32, u32)> {
    let flags = AtFlags::STATX_DONT_SYNC;
    let stat = rustix::fs::statx(CWD, dir, flags, StatxFlags::empty())?;
    Ok((stat.stx_dev_major, stat.stx_dev_minor))
}

/// Returns the device number of the filesystem of an open file without a request to its server.
///
/// # Errors
/// The kernel's.
pub fn device_of(file: impl AsFd) -> io::Result<(u32, u32)> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let stat = rustix::fs::statx(file, "", flags, StatxFlags::empty())?;
    Ok((stat.stx_dev_major, stat.stx_dev_minor))
}

/// Borrows the descriptor for serving threads.
impl AsFd for Mountpoint {
    fn as_fd(&self) -> rustix::fd::BorrowedFd<'_> {
        self.fuse.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_table_lines_are_parsed() {
        let line = b"36 35 0:98 / /mnt/a\\040b\\134 ro,nosuid shared:1 master:2 - fuse.tuff /x/y\\040z ro,user_id=0";
        let requested = Mounted {
            dir: PathBuf::from("/mnt/a b\\"),
            fstype: "fuse.tuff".to_owned(),
            source: PathBuf::from("/x/y z"),
            device: (0, 98),
            user: Some(0),
        };
        assert_eq!(mountinfo(line), Some(requested));
        assert_eq!(mountinfo(b""), None);
        assert_eq!(mountinfo(b"36 35 0:98 / /mnt"), None);
    }

    #[test]
    fn commas_in_names_are_escaped() {
        assert_eq!(escaped("a,b\\c"), "a\\,b\\\\c");
    }
}
