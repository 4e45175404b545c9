//! `tuff volume sync`: makes a mounted volume durable, with what the kernel has not written yet.

use super::failure::{At, Failure, Result};
use crate::cmd::umount::mounted;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::io;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::process::ExitCode;
use tuff_fuse::mountpoint;
use tuff_mount::volume::SYNC_XATTR;

/// Make everything in a mounted volume durable
///
/// Returns when all that programs have written before is on the device, also through mappings and without fsync. sync and
/// syncfs do so only for volumes on block devices that root has mounted, from Linux 6.18 on.
///
/// Only root and the user who mounted the volume may do this. Needs Linux 6.16.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Mount point of the volume
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let place = args.dir.display();
    let dir = mounted(&args.dir)?;
    let no_volume = || {
        Failure::Usage(format!(
            "{place}: no mounted volume, or one of an earlier server"
        ))
    };
    let found = mountpoint::find(&dir).at(&place)?;
    if !found.is_some_and(|mount| mount.is_served()) {
        return Err(no_volume());
    }
    // Holds the mount.
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let held = rustix::fs::open(&dir, flags, Mode::empty()).map_err(io::Error::from);
    let held = held.at(&place)?;
    let path = format!("/proc/self/fd/{}", held.as_raw_fd());
    // The kernel writes all files at once. Otherwise each is written when the server asks for it.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    if let Ok(root) = rustix::fs::open(&path, flags, Mode::empty()) {
        let _ = rustix::fs::syncfs(root);
    }
    let mut value = [0; 16];
    match rustix::fs::getxattr(&path, SYNC_XATTR, &mut value) {
        Ok(_) => Ok(ExitCode::SUCCESS),
        Err(Errno::NODATA) => Err(no_volume()),
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
