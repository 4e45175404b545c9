//! `-o remount`: makes a mount read-only or writable while programs use it.

use super::failure::{Failure, Result};
use super::live;
use crate::cmd::mount::options::General;
use crate::cmd::umount::mounted;
use rustix::io::Errno;
use rustix::mount::{MountFlags, mount_remount};
use std::io;
use std::path::Path;
use std::process::ExitCode;
use tuff_mount::volume::Control;

/// Changes the flags of the mount on `dir`. A volume is durable before it counts as read-only.
pub(super) fn run(dir: &Path, options: &General) -> Result<ExitCode> {
    let dir = mounted(dir)?;
    let place = dir.display();
    let mut flags = options.flags;
    if options.read_only {
        flags |= MountFlags::RDONLY;
    } else {
        // The kernel does not ask the server.
        live::request(&dir, &Control::Writable)?;
    }
    mount_remount(&dir, flags, c"").map_err(|e| match e {
        Errno::BUSY => Failure::Host(
            place.to_string(),
            io::Error::other("cannot be read-only while files are open for writing"),
        ),
        Errno::PERM => Failure::Usage(format!("{place}: only root changes mounts")),
        e => Failure::Host(place.to_string(), e.into()),
    })?;
    if !options.read_only {
        return Ok(ExitCode::SUCCESS);
    }
    match live::request(&dir, &Control::Sync) {
        // An image, or a kernel that does not wait for its pages: the next checkpoint has them.
        Err(Failure::Usage(_)) => Ok(ExitCode::SUCCESS),
        Err(Failure::Host(_, e)) if e.kind() == io::ErrorKind::Unsupported => Ok(ExitCode::SUCCESS),
        done => done.map(|()| ExitCode::SUCCESS),
    }
}
