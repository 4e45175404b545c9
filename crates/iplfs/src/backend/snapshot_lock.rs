//! Locks of mounted snapshots in a directory of zone files.
//!
//! ```text
//!  DIR/mounted/NUMBER-VERSION      branch, and checkpoint of the snapshot; exists and is locked while it is mounted
//! ```
//!
//! A mount takes its lock while it holds the lock of the set of branches, and so does every process while it deletes a
//! snapshot or a branch. A killed mount leaves a file without a lock, which stands for nothing.

use super::branch::BranchSet;
use super::host::{lock, retry};
use crate::error::{Error, Result};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Lock of a mounted snapshot, held until it is dropped.
pub(crate) struct SnapshotLock {
    path: PathBuf,
    file: File,
}

fn directory(set: &BranchSet) -> PathBuf {
    set.path().join("mounted")
}

fn path_of(set: &BranchSet, branch: u64, version: u64) -> PathBuf {
    directory(set).join(format!("{branch:08x}-{version:016x}"))
}

impl SnapshotLock {
    /// Takes the lock. Returns `None` on a read-only host, where no process can delete the snapshot. The caller holds the lock
    /// of the set.
    pub(crate) fn take(set: &BranchSet, branch: u64, version: u64) -> Result<Option<Self>> {
        let path = path_of(set, branch, version);
        match Self::try_take(&directory(set), &path) {
            Ok(lock) => Ok(Some(lock)),
            Err(e) if e.kind() == io::ErrorKind::ReadOnlyFilesystem => Ok(None),
            Err(e) => Err(Error::io(e, path.display())),
        }
    }

    fn try_take(dir: &Path, path: &Path) -> io::Result<Self> {
        loop {
            match retry(|| fs::create_dir(dir)) {
                Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
                _ => {}
            }
            // The end of another mount may remove the file or the directory at any time.
            let file = match retry(|| File::create(path)) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                file => file?,
            };
            match lock(&file, true) {
                Err(e) if e.kind() == io::ErrorKind::ResourceBusy => continue,
                other => other?,
            }
            let number = file.metadata()?.ino();
            if fs::metadata(path).is_ok_and(|found| found.ino() == number) {
                let path = path.to_owned();
                return Ok(Self { path, file });
            }
        }
    }
}

impl Drop for SnapshotLock {
    fn drop(&mut self) {
        // Another mount of the snapshot keeps the file.
        if lock(&self.file, false).is_ok() {
            let _ = fs::remove_file(&self.path);
            let _ = self.path.parent().map(fs::remove_dir);
        }
    }
}

/// Returns whether a snapshot of a branch is mounted, or with `None` any. The caller holds the lock of the set.
pub(crate) fn is_mounted(set: &BranchSet, branch: u64, version: Option<u64>) -> Result<bool> {
    let is_locked = |path: &Path| File::open(path).is_ok_and(|file| lock(&file, false).is_err());
    if let Some(version) = version {
        return Ok(is_locked(&path_of(set, branch, version)));
    }
    let dir = directory(set);
    let files = match retry(|| fs::read_dir(&dir)) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
        files => files.map_err(|e| Error::io(e, dir.display()))?,
    };
    let prefix = format!("{branch:08x}-");
    for file in files {
        let file = file.map_err(|e| Error::io(e, dir.display()))?;
        let name = file.file_name();
        let is_ours = name.to_str().is_some_and(|name| name.starts_with(&prefix));
        if is_ours && is_locked(&file.path()) {
            return Ok(true);
        }
    }
    Ok(false)
}
