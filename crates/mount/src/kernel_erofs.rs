//! Mounts of the kernel's EROFS from files, with fsopen(2) and move_mount(2). No loop device is involved.
//!
//! A mount can be placed beneath another one and so replace it while it is in use:
//!
//! 1. [`KernelErofs::attach_beneath`] puts the new mount below the one at a directory.
//! 2. A lazy unmount removes the upper one. Files that are open there stay usable.

use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::fs::{AtFlags, CWD, StatxFlags};
use rustix::io::{Errno, Result};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MoveMountFlags, fsconfig_create,
    fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, move_mount,
};
use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};

/// Mount of an image that is not attached to a directory. Needs root.
pub struct KernelErofs {
    root: OwnedFd,
}

/// Cached or direct reads of the files of an image by the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileReads {
    /// Through the page cache, with readahead.
    Cached,
    /// Exactly what is needed, several parts at once, and kept in no page cache. Kernels that do not know this option of EROFS
    /// read through the page cache.
    Direct,
}

/// Returns the reason why the kernel did not mount an image from a file.
pub fn reason(e: Errno) -> String {
    match e {
        Errno::PERM => "that needs root".to_owned(),
        Errno::NODEV => "this kernel has no EROFS".to_owned(),
        Errno::NOTBLK => {
            "this kernel mounts EROFS from block devices only; from files it needs Linux 6.12 with CONFIG_EROFS_FS_BACKED_BY_FILE".to_owned()
        }
        Errno::INVAL | Errno::OPNOTSUPP => {
            format!("the image uses what this kernel does not know, or is damaged ({e})")
        }
        e => e.to_string(),
    }
}

impl KernelErofs {
    /// Mounts the image in the file `source` with its `devices` in the order of the device table, read-only. `flags` are those
    /// of mount(2), such as "nosuid".
    ///
    /// # Errors
    /// The kernel's. `ENOTBLK`: it mounts EROFS from block devices only. `EINVAL` also for paths of more than 255 bytes.
    pub fn open(
        source: &Path,
        devices: &[PathBuf],
        reads: FileReads,
        flags: MountFlags,
    ) -> Result<Self> {
        let fs = fsopen("erofs", FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_set_string(&fs, "source", source)?;
        for device in devices {
            fsconfig_set_string(&fs, "device", device)?;
        }
        fsconfig_set_flag(&fs, "ro")?;
        if reads == FileReads::Direct {
            // A kernel that does not know it refuses the option only.
            let _ = fsconfig_set_flag(&fs, "directio");
        }
        fsconfig_create(&fs)?;
        let mut attr = MountAttrFlags::MOUNT_ATTR_RDONLY;
        for (flag, requested) in [
            (MountFlags::NOSUID, MountAttrFlags::MOUNT_ATTR_NOSUID),
            (MountFlags::NODEV, MountAttrFlags::MOUNT_ATTR_NODEV),
            (MountFlags::NOEXEC, MountAttrFlags::MOUNT_ATTR_NOEXEC),
        ] {
            attr.set(requested, flags.contains(flag));
        }
        let root = fsmount(&fs, FsMountFlags::FSMOUNT_CLOEXEC, attr)?;
        Ok(Self { root })
    }

    /// Attaches the mount to a directory.
    ///
    /// # Errors
    /// The kernel's.
    pub fn attach(self, dir: &Path) -> Result<()> {
        self.move_to(dir, MoveMountFlags::empty())
    }

    /// Attaches the mount beneath the one at `dir`, which stays visible until it is unmounted. Needs Linux 6.5.
    ///
    /// # Errors
    /// The kernel's. `EINVAL` if nothing is mounted at `dir`, or if the kernel is too old.
    pub fn attach_beneath(self, dir: &Path) -> Result<()> {
        self.move_to(dir, MoveMountFlags::MOVE_MOUNT_BENEATH)
    }

    fn move_to(self, dir: &Path, flags: MoveMountFlags) -> Result<()> {
        let flags = flags | MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
        move_mount(&self.root, "", CWD, dir, flags)
    }

    /// Device number of the filesystem, major and minor.
    ///
    /// # Errors
    /// The kernel's.
    pub fn device(&self) -> Result<(u32, u32)> {
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let stat = rustix::fs::statx(&self.root, "", flags, StatxFlags::empty())?;
        Ok((stat.stx_dev_major, stat.stx_dev_minor))
    }

    /// Watches for the end of the filesystem: its last mount in all mount namespaces is gone, and its last file closed.
    ///
    /// # Errors
    /// The kernel's.
    pub fn watch(&self) -> Result<EndWatch> {
        let watch = inotify::init(CreateFlags::CLOEXEC)?;
        let root = format!("/proc/self/fd/{}", self.root.as_raw_fd());
        // The event of interest is always delivered; a watch must name another one.
        inotify::add_watch(&watch, root, WatchFlags::DELETE_SELF)?;
        Ok(EndWatch(watch))
    }
}

/// Watch for the end of a filesystem. It does not keep the filesystem in use.
///
/// Its descriptor is readable once the filesystem has ended, and before the kernel gives its device number to another one. It can
/// be sent to another process.
pub struct EndWatch(OwnedFd);

impl AsFd for EndWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Takes the descriptor of a watch that another process made.
impl From<OwnedFd> for EndWatch {
    fn from(fd: OwnedFd) -> Self {
        Self(fd)
    }
}

impl EndWatch {
    /// Waits for the end of the filesystem.
    ///
    /// # Errors
    /// The kernel's.
    pub fn wait(self) -> Result<()> {
        let mut buf = [MaybeUninit::uninit(); 512];
        let mut events = inotify::Reader::new(&self.0, &mut buf);
        loop {
            match events.next() {
                Ok(event) if event.events().contains(ReadFlags::UNMOUNT) => return Ok(()),
                Ok(_) | Err(Errno::INTR) => {}
                Err(e) => return Err(e),
            }
        }
    }
}
