//! Requests to the server of a mounted volume.

use super::failure::{At, Failure, Result};
use crate::cmd::umount::mounted;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::{fs, io};
use tuff_fuse::mountpoint;
use tuff_iplfs::Error;
use tuff_mount::volume::Control;

/// File that every directory of a volume has.
const VOLUME_FILE: &str = "volume";

/// Returns the mount point at `path`, if a volume or image is mounted there.
pub(super) fn mount_point(path: &Path) -> Option<PathBuf> {
    let dir = mounted(path).ok()?;
    let found = mountpoint::find(&dir).ok().flatten();
    found.filter(mountpoint::Mounted::is_served).map(|_| dir)
}

/// Returns the directory of the volume that is mounted on `path`. None if no volume in a directory is.
///
/// # Errors
/// Those of [`directory_of`].
pub(super) fn mounted_directory(path: &Path) -> Result<Option<PathBuf>> {
    let dir = mounted(path).ok();
    match dir.and_then(|dir| mountpoint::find(&dir).ok().flatten()) {
        Some(found) if found.is_served() => directory_of(&found),
        _ => Ok(None),
    }
}

/// Returns the directory of a mounted volume, which the source of its mount names.
///
/// # Errors
/// `Usage` if the directory is not that of the user who mounted: what a mount says of its source is a claim.
fn directory_of(found: &mountpoint::Mounted) -> Result<Option<PathBuf>> {
    // The branch follows the last `@`, and the path may have others.
    let source = found.source.as_os_str().as_bytes();
    let ends = (0..source.len()).rev().filter(|at| source[*at] == b'@');
    let mut candidates = [source.len()].into_iter().chain(ends);
    let volume = candidates.find_map(|end| {
        let dir = PathBuf::from(OsStr::from_bytes(&source[..end]));
        dir.join(VOLUME_FILE).is_file().then_some(dir)
    });
    let Some(volume) = volume else {
        return Ok(None);
    };
    let owner = fs::metadata(&volume).at(volume.display())?.uid();
    if found.user.is_none_or(|user| user != 0 && user != owner) {
        return Err(Failure::Usage(format!(
            "{}: a user who does not own {} mounted it: name the volume",
            found.dir.display(),
            volume.display()
        )));
    }
    Ok(Some(volume))
}

/// Requests a change of the volume that is mounted on `dir`, and waits for it.
pub(super) fn request(dir: &Path, control: &Control) -> Result<()> {
    let place = dir.display();
    let Some(attribute) = control.attribute() else {
        return Err(Failure::Usage(format!(
            "{place}: names of snapshots and branches have no `/`"
        )));
    };
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
    match rustix::fs::getxattr(&path, attribute, &mut value) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_source_of_a_mount_names_a_directory_of_the_user_who_mounted() {
        let scratch = tuff_testkit::unused_path("mounted-source");
        let dir = scratch.join("a@b");
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join(VOLUME_FILE), "").unwrap();
        let owner = fs::metadata(&dir).unwrap().uid();
        let found = |source: &str, user| {
            directory_of(&mountpoint::Mounted {
                dir: "/m".into(),
                fstype: "fuse.tuff".to_owned(),
                source: scratch.join(source),
                device: (0, 98),
                user,
            })
        };
        for source in ["a@b", "a@b@main", "a@b@dev:s@1"] {
            for user in [0, owner] {
                let found = found(source, Some(user)).ok().flatten();
                assert_eq!(found.as_deref(), Some(&*dir), "{source}");
            }
            for user in [None, Some(owner + 1)] {
                assert!(found(source, user).is_err(), "{source}");
            }
        }
        assert!(found("a", Some(0)).is_ok_and(|found| found.is_none()));
        fs::remove_dir_all(&scratch).unwrap();
    }
}
