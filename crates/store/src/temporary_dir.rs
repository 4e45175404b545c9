//! Temporary directories for files that need names.
//!
//! Only the user who creates such a directory can read it or enter it, and nobody knows its name in advance. It is removed with the
//! value. A process that is killed leaves it; the next one of the same user that creates one in the same place removes it. A lock on
//! the directory tells whether its process lives:
//!
//! * The creator locks the directory, and then makes sure that it still has its name. Otherwise it starts again.
//! * Nothing is removed without the lock. On filesystems without locks, nothing is removed.

use crate::host::retry;
use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

/// Start of the names. The rest is a random number of 16 hexadecimal digits.
const PREFIX: &str = ".tuff-temporary-";

/// Directory that only the user of this process can enter. Removed with its content when the value is dropped.
#[derive(Debug)]
pub struct TemporaryDir {
    path: PathBuf,
    /// Holds the lock.
    _dir: File,
}

impl TemporaryDir {
    /// Creates a directory in `parent`, and removes those that killed processes of this user have left there.
    ///
    /// # Errors
    /// Fails if no directory can be created.
    pub fn create(parent: &Path) -> io::Result<Self> {
        remove_stale(parent);
        for _ in 0..100 {
            let random = RandomState::new().hash_one(0);
            let path = parent.join(format!("{PREFIX}{random:016x}"));
            match retry(|| rustix::fs::mkdir(&path, Mode::RWXU)) {
                Ok(()) => {}
                Err(Errno::EXIST) => continue,
                Err(e) => return Err(e.into()),
            }
            let locked = open(&path).and_then(|dir| {
                // Errors are those of filesystems without locks.
                let _ = retry(|| rustix::fs::flock(&dir, FlockOperation::LockExclusive));
                Ok((has_name(&dir, &path)?, dir))
            });
            match locked {
                Ok((true, dir)) => return Ok(Self { path, _dir: dir }),
                // Another process took it for a leftover.
                Ok((false, _)) | Err(Errno::NOENT) => {}
                Err(e) => {
                    let _ = std::fs::remove_dir(&path);
                    return Err(e.into());
                }
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    /// Path of the directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for TemporaryDir {
    fn drop(&mut self) {
        // The error that ends the work is the one to report.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

fn open(path: &Path) -> rustix::io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    retry(|| rustix::fs::openat(CWD, path, flags, Mode::empty())).map(File::from)
}

/// Returns true if the open directory is the one at `path`.
fn has_name(dir: &File, path: &Path) -> rustix::io::Result<bool> {
    let own = retry(|| rustix::fs::fstat(dir))?;
    let named = retry(|| rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW))?;
    Ok((own.st_dev, own.st_ino) == (named.st_dev, named.st_ino))
}

/// Removes the directories in `parent` that killed processes of this user have left.
fn remove_stale(parent: &Path) {
    let Ok(entries) = std::fs::read_dir(parent) else {
        return;
    };
    for entry in entries.flatten() {
        if is_ours(&entry.file_name()) {
            // A directory that cannot be removed stays.
            let _ = remove_unlocked(&entry.path());
        }
    }
}

fn is_ours(name: &OsStr) -> bool {
    let random = name.as_encoded_bytes().strip_prefix(PREFIX.as_bytes());
    random.is_some_and(|digits| digits.len() == 16 && digits.iter().all(u8::is_ascii_hexdigit))
}

/// Removes a directory if it is private to this user and no process holds its lock.
fn remove_unlocked(path: &Path) -> io::Result<()> {
    let is_own = |stat: &Stat| {
        stat.st_uid == rustix::process::geteuid().as_raw() && stat.st_mode & 0o7777 == 0o700
    };
    let dir = open(path)?;
    if !is_own(&rustix::fs::fstat(&dir)?) {
        return Ok(());
    }
    rustix::fs::flock(&dir, FlockOperation::NonBlockingLockExclusive)?;
    // Below the descriptor, so that a path which leads elsewhere meanwhile is not followed.
    let below = PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd()));
    for entry in std::fs::read_dir(&below)? {
        let entry = entry?;
        match entry.file_type()?.is_dir() {
            true => std::fs::remove_dir_all(entry.path())?,
            false => std::fs::remove_file(entry.path())?,
        }
    }
    std::fs::remove_dir(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn names(parent: &Path) -> Vec<String> {
        let mut names: Vec<String> = std::fs::read_dir(parent)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    /// Directory that a killed process would have left.
    fn leftover(parent: &Path, number: u32) -> PathBuf {
        let path = parent.join(format!("{PREFIX}{number:016x}"));
        std::fs::create_dir_all(path.join("below")).unwrap();
        std::fs::write(path.join("below/image"), "secret").unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o700)).unwrap();
        path
    }

    #[test]
    fn a_temporary_directory_is_closed_to_others_and_leaves_nothing() {
        let parent = tempfile::tempdir().unwrap();
        let dir = TemporaryDir::create(parent.path()).unwrap();
        let mode = dir.path().metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o700);
        std::fs::write(dir.path().join("image"), "secret").unwrap();
        drop(dir);
        assert_eq!(names(parent.path()), [""; 0]);
    }

    #[test]
    fn leftovers_of_killed_processes_are_removed_and_those_of_living_ones_stay() {
        let parent = tempfile::tempdir().unwrap();
        let parent = parent.path();
        let living = TemporaryDir::create(parent).unwrap();
        leftover(parent, 1);
        let other = TemporaryDir::create(parent).unwrap();
        let name =
            |dir: &TemporaryDir| dir.path().file_name().unwrap().to_str().unwrap().to_owned();
        let mut expected = [name(&living), name(&other)];
        expected.sort();
        assert_eq!(names(parent), expected);
    }

    #[test]
    fn what_only_looks_like_a_leftover_stays() {
        let parent = tempfile::tempdir().unwrap();
        let parent = parent.path();
        let target = parent.join("target");
        std::fs::create_dir(&target).unwrap();
        std::fs::write(target.join("file"), "kept").unwrap();
        std::fs::set_permissions(&target, PermissionsExt::from_mode(0o700)).unwrap();
        symlink(&target, parent.join(format!("{PREFIX}{:016x}", 1))).unwrap();
        std::fs::write(parent.join(format!("{PREFIX}{:016x}", 2)), "").unwrap();
        let open = leftover(parent, 3);
        std::fs::set_permissions(&open, PermissionsExt::from_mode(0o755)).unwrap();
        std::fs::create_dir(parent.join(format!("{PREFIX}notes"))).unwrap();
        // A leftover with a link to a directory loses the link only.
        let stale = leftover(parent, 4);
        symlink(&target, stale.join("link")).unwrap();
        drop(TemporaryDir::create(parent).unwrap());
        assert_eq!(
            names(parent),
            [
                ".tuff-temporary-0000000000000001",
                ".tuff-temporary-0000000000000002",
                ".tuff-temporary-0000000000000003",
                ".tuff-temporary-notes",
                "target",
            ]
        );
        assert_eq!(std::fs::read(target.join("file")).unwrap(), b"kept");
    }
}
