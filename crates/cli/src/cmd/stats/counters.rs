//! Text that a mount offers: its counters, and the requests of its start.

use crate::cmd::umount::mounted;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use tuff_erofs::{Error, Place, Result};
use tuff_fuse::handler::STATS_XATTR;
use tuff_fuse::mountpoint;
use tuff_mount::counters_socket;

/// Returns the counters of the mount at `dir`, and the requests of its start.
pub(super) fn counters(dir: &Path) -> Result<String> {
    let shown = dir.display();
    let failed = |e: Errno| Error::io(Place::file(&shown), "cannot read the counters", e.into());
    for _ in 0..100 {
        let dir = mounted(dir)?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        // Holds the filesystem, so that its device number is not given to another one.
        let held = rustix::fs::open(&dir, flags, Mode::empty()).map_err(failed)?;
        let device = mountpoint::device_of(&held).map_err(|e| failed(errno(&e)))?;
        let found = mountpoint::find(&dir).map_err(|e| failed(errno(&e)))?;
        // The kernel's mount may take the place of the first one meanwhile.
        let Some(mount) = found.filter(|mount| mount.device == device) else {
            continue;
        };
        if mount.is_served() {
            return from_attribute(&held).map_err(failed);
        }
        return counters_socket::read(device).ok_or_else(|| {
            Error::usage(format_args!(
                "{shown}: mounted by the kernel, which keeps no counters; mount it without --kernel"
            ))
        });
    }
    Err(failed(Errno::AGAIN))
}

fn errno(e: &std::io::Error) -> Errno {
    Errno::from_io_error(e).unwrap_or(Errno::IO)
}

fn from_attribute(root: &OwnedFd) -> rustix::io::Result<String> {
    // Largest value of an attribute.
    let mut value = vec![0; 64 << 10];
    // The descriptor itself is none for reading.
    let path = format!("/proc/self/fd/{}", root.as_raw_fd());
    let n = rustix::fs::getxattr(path, STATS_XATTR, &mut value[..])?;
    Ok(String::from_utf8_lossy(&value[..n]).into_owned())
}
