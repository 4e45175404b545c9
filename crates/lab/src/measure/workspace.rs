//! Work directory for images and extracted trees.

use crate::{At, Error, Result};
use rustix::fs::{FlockOperation, flock, statfs};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Work directory of one run, removed on drop. A directory whose lock is free belongs to an
/// interrupted run; the next run removes it.
#[derive(Debug)]
pub(crate) struct Work {
    folder: PathBuf,
    target: PathBuf,
    _lock: File,
}

const PREFIX: &str = "tuff-lab-";

impl Work {
    pub(crate) fn create(parent: &Path) -> Result<Work> {
        let parent = parent.canonicalize().at("find", parent)?;
        sweep(&parent);
        let mut number = 1;
        let folder = loop {
            let folder = parent.join(format!("{PREFIX}{}-{number}", std::process::id()));
            match std::fs::create_dir(&folder) {
                Ok(()) => break folder,
                Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => number += 1,
                Err(e) => return Err(Error::io("create", &folder, e)),
            }
        };
        let lock = folder.join("lock");
        let file = File::create(&lock).at("create", &lock)?;
        flock(&file, FlockOperation::NonBlockingLockExclusive).at("lock", &lock)?;
        let target = folder.join("target");
        Ok(Work {
            folder,
            target,
            _lock: file,
        })
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the target directory of extractions, which must not exist before.
    pub(crate) fn target(&self) -> &Path {
        &self.target
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Removes the result of the last sample, and writes back dirty data unless the directory is on
    /// tmpfs.
    pub(crate) fn clear_results(&self) -> Result<()> {
        remove(&self.path("image"))?;
        remove(&self.target)?;
        if filesystem(&self.folder)? != "tmpfs" {
            rustix::fs::sync();
        }
        Ok(())
    }

    /// Removes all content except the lock.
    pub(crate) fn clear(&self) -> Result<()> {
        let listing = std::fs::read_dir(&self.folder).at("list", &self.folder)?;
        for entry in listing {
            let path = entry.at("list", &self.folder)?.path();
            if path.file_name().is_some_and(|n| n != "lock") {
                remove(&path)?;
            }
        }
        Ok(())
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        if let Err(e) = remove(&self.folder) {
            eprintln!("tuff-lab: warning: {e}");
        }
    }
}

/// Removes directories of interrupted runs. Errors are ignored, so the next run tries again.
fn sweep(parent: &Path) {
    for entry in std::fs::read_dir(parent).into_iter().flatten().flatten() {
        let folder = entry.path();
        let Ok(lock) = File::open(folder.join("lock")) else {
            continue;
        };
        let ours = entry.file_name().to_string_lossy().starts_with(PREFIX);
        if ours && flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok() {
            // Mounts are detached before the filesystems that contain their backing files. The
            // mounts of a dead FUSE server do not respond and are detached lazily.
            for (name, how) in [("mount", "--recursive"), ("disk", "--lazy")] {
                let mut umount = Command::new("umount");
                umount
                    .arg(how)
                    .arg(folder.join(name))
                    .stdout(Stdio::null())
                    .stderr(Stdio::null());
                let _ = umount.status();
            }
            let _ = std::fs::remove_dir_all(&folder);
        }
    }
}

/// Removes a file or tree if it exists.
pub(crate) fn remove(path: &Path) -> Result<()> {
    let done = match std::fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_dir() => std::fs::remove_dir_all(path),
        Ok(_) => std::fs::remove_file(path),
        Err(e) => Err(e),
    };
    match done {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(Error::io("remove", path, e)),
        _ => Ok(()),
    }
}

/// Returns the length of a file in bytes.
pub(crate) fn length(path: &Path) -> Result<u64> {
    Ok(std::fs::metadata(path).at("stat", path)?.len())
}

/// Returns the digest of a file's content as 16 hexadecimal digits.
pub(crate) fn digest(path: &Path) -> Result<String> {
    let file = File::open(path).at("open", path)?;
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(file).at("read", path)?;
    Ok(hasher.finalize().to_hex()[..16].to_owned())
}

/// Returns the type of the filesystem that contains `path`. The magic numbers are from
/// linux/magic.h.
pub(crate) fn filesystem(path: &Path) -> Result<String> {
    let number = statfs(path).at("stat", path)?.f_type;
    let name = match number & 0xFFFF_FFFF {
        0x0102_1994 => "tmpfs",
        0xEF53 => "ext4",
        0x9123_683E => "btrfs",
        0x5846_5342 => "xfs",
        0x794C_7630 => "overlayfs",
        0xF2F5_2010 => "f2fs",
        0x2FC1_2FC1 => "zfs",
        0xE0F5_E1E2 => "erofs",
        0x7371_7368 => "squashfs",
        0x6969 => "nfs",
        other => return Ok(format!("0x{other:x}")),
    };
    Ok(name.to_owned())
}

/// Drops the kernel's caches and then reads `program`, so that its own pages are cached again.
pub(crate) fn forget_caches(program: &Path) -> Result<()> {
    const DROP: &str = "/proc/sys/vm/drop_caches";
    rustix::fs::sync();
    std::fs::write(DROP, "3\n").at("write", Path::new(DROP))?;
    let mut file = File::open(program).at("open", program)?;
    std::io::copy(&mut file, &mut std::io::sink()).at("read", program)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_folders_of_interrupted_runs_are_removed() {
        let parent = tempfile::tempdir().unwrap();
        let dead = parent.path().join("tuff-lab-0");
        std::fs::create_dir(&dead).unwrap();
        std::fs::write(dead.join("lock"), "").unwrap();
        let living = Work::create(parent.path()).unwrap();
        assert!(!dead.exists());
        sweep(parent.path());
        assert!(living.folder().exists());
        let folder = living.folder().to_owned();
        drop(living);
        assert!(!folder.exists());
    }

    #[test]
    fn nested_mounts_of_an_interrupted_run_are_removed() {
        let parent = tempfile::tempdir().unwrap();
        let dead = parent.path().join("tuff-lab-0");
        let outer = dead.join("mount");
        std::fs::create_dir_all(&outer).unwrap();
        std::fs::write(dead.join("lock"), "").unwrap();
        let mount = |place: &Path| {
            let flags = rustix::mount::MountFlags::empty();
            rustix::mount::mount("tmpfs", place, "tmpfs", flags, None).is_ok()
        };
        if !mount(&outer) {
            tuff_testkit::skipped("mounting needs root");
            return;
        }
        let inner = outer.join("inner");
        std::fs::create_dir(&inner).unwrap();
        assert!(mount(&inner));
        sweep(parent.path());
        assert!(!dead.exists());
    }

    #[test]
    fn clearing_keeps_the_lock() {
        let parent = tempfile::tempdir().unwrap();
        let work = Work::create(parent.path()).unwrap();
        std::fs::create_dir(work.target()).unwrap();
        std::fs::write(work.path("image"), "x").unwrap();
        work.clear().unwrap();
        let left: Vec<_> = std::fs::read_dir(work.folder())
            .unwrap()
            .flatten()
            .collect();
        assert_eq!(left.len(), 1);
        assert_eq!(left[0].file_name(), "lock");
    }
}
