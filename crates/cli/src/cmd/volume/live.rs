//! Requests to the server of a mounted volume.

use super::failure::{At, Failure, Result};
use crate::cmd::umount::mounted;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use tuff_fuse::mountpoint;
use tuff_iplfs::Error;
use tuff_mount::volume::Control;

/// Returns the mount point at `path`, if a volume or image is mounted there.
pub(super) fn mount_point(path: &Path) -> Option<PathBuf> {
    let dir = mounted(path).ok()?;
    let found = mountpoint::find(&dir).ok().flatten();
    found.filter(mountpoint::Mounted::is_served).map(|_| dir)
}

/// Requests a change of the volume that is mounted on `dir`, and waits for it.
pub(super) fn request(dir: &Path, control: &Control) -> Result<()> {
    let place = dir.display();
    let no_volume = || {
        Failure::Usage(format!(
            "{place}: no mounted volume, or one of an earlier server"
        ))
    };
    // Holds the mount.
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let held = rustix::fs::open(dir, flags, Mode::empty()).map_err(io::Error::from);
    let held = held.at(&place)?;
    let path = format!("/proc/self/fd/{}", held.as_raw_fd());
    // The kernel writes all files at once. Otherwise each is written when the server asks for it.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    if let Ok(root) = rustix::fs::open(&path, flags, Mode::empty()) {
        let _ = rustix::fs::syncfs(root);
    }
    let mut value = [0; 4096];
    match rustix::fs::getxattr(&path, control.attribute(), &mut value) {
        Ok(len) => match Control::outcome(&value[..len]) {
            Some((0, _)) => Ok(()),
            Some((code, what)) => Err(refused(place.to_string(), code, what)),
            None => Err(no_volume()),
        },
        Err(Errno::NODATA) => Err(no_volume()),
        Err(Errno::RANGE) => Err(Failure::Usage(format!("{place}: the name is too long"))),
        Err(Errno::PERM | Errno::ACCESS) => Err(Failure::Usage(format!(
            "{place}: only root and the user who mounted the volume may do this"
        ))),
        Err(Errno::OPNOTSUPP) => {
            let what = "before Linux 6.16 the kernel does not wait for its pages; unmount the volume instead";
            Err(io::Error::new(io::ErrorKind::Unsupported, what)).at(&place)
        }
        Err(e) => Err(io::Error::from(e)).at(&place),
    }
}

/// Returns the error that a server reported.
fn refused(place: String, code: u8, what: String) -> Failure {
    match code {
        2 => Failure::Usage(format!("{place}: {what}")),
        3 => Failure::Volume(place, Error::Corrupt(what)),
        5 => Failure::Host(place, io::Error::other(what)),
        _ => Failure::Volume(place, Error::Unsupported(what)),
    }
}
