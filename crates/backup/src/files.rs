//! Files of a store that appear complete or not at all.
//!
//! Everything that changes a store in a directory is here, in [`pack`](crate::pack) or in [`parity`](crate::parity), one
//! [`step`] at a time: tests end a run before each of them.

use crate::cluster::BLOCK;
use crate::faults::is_lost;
use rustix::fs::{CWD, FlockOperation, RenameFlags, flock, renameat_with};
use rustix::io::Errno;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use tuff_mkfs::{Error, Place, Result};
use tuff_store::retry;

/// Longest manifest, pin or header that is read. Unit: bytes.
pub(crate) const TEXT_MAX: u64 = 16 << 20;

/// End of the names of files that are not complete.
pub(crate) const NEW: &str = ".new";

/// Makes a file that must not exist, durably.
pub(crate) fn create(path: &Path, bytes: &[u8]) -> Result<()> {
    create_file(path, bytes).map_err(|e| Error::io(Place::file(path.display()), "cannot create", e))
}

/// Makes a file as [`create`] does. The error has the kind `AlreadyExists` if the file exists.
pub(crate) fn create_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let temporary = write(path, bytes)?;
    step()?;
    if is_lost() {
        return unlink(&temporary);
    }
    let made = match retry(|| renameat_with(CWD, &temporary, CWD, path, RenameFlags::NOREPLACE)) {
        // Some filesystems cannot rename so, but all of these have hard links.
        Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => {
            retry(|| fs::hard_link(&temporary, path))
        }
        renamed => renamed.map_err(io::Error::from),
    };
    // It was renamed, or the name exists.
    let _ = unlink(&temporary);
    made?;
    sync_parent(path)
}

/// Writes a file or replaces it, durably.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    replace_file(path, bytes).map_err(|e| Error::io(Place::file(path.display()), "cannot write", e))
}

/// Replaces a file as [`replace`] does, with an error of the host.
pub(crate) fn replace_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let temporary = write(path, bytes)?;
    step()?;
    if is_lost() {
        return unlink(&temporary);
    }
    retry(|| fs::rename(&temporary, path))?;
    sync_parent(path)
}

/// File that is written piece by piece, under a temporary name. It is removed if it does not get another one.
#[derive(Debug)]
pub(crate) struct NewFile {
    file: File,
    /// `None` once it has its name.
    temporary: Option<PathBuf>,
}

impl NewFile {
    /// Makes a file at `temporary`, which ends with [`NEW`].
    pub(crate) fn create(temporary: PathBuf) -> io::Result<Self> {
        step()?;
        let mut options = File::options();
        let options = options.read(true).write(true).create(true).truncate(true);
        Ok(Self {
            file: options.open(&temporary)?,
            temporary: Some(temporary),
        })
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Gives the file its name, durably. One of that name is replaced.
    pub(crate) fn finish(mut self, path: &Path) -> io::Result<()> {
        self.file.sync_all()?;
        step()?;
        if let Some(temporary) = &self.temporary {
            retry(|| fs::rename(temporary, path))?;
        }
        self.temporary = None;
        sync_parent(path)
    }
}

impl Write for NewFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if let Some(temporary) = &self.temporary {
            let _ = unlink(temporary);
        }
    }
}

/// Reads a file of up to `max` bytes.
pub(crate) fn read(path: &Path, max: u64) -> io::Result<Vec<u8>> {
    let file = open(path)?;
    let len = retry(|| file.metadata())?.len().min(max);
    // Fits: callers bound what they read. Trees cover whole blocks.
    let mut bytes = Vec::with_capacity((len as usize).next_multiple_of(BLOCK));
    file.take(max).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Opens a regular file. What else may be in its place would block, or act when it is opened.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    let flags = rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::CLOEXEC;
    let file = retry(|| rustix::fs::open(path, flags, rustix::fs::Mode::empty()))?;
    let file = File::from(file);
    match retry(|| file.metadata())?.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "not a regular file",
        )),
    }
}

/// Removes a file durably. One that is not there is no error.
pub(crate) fn remove(path: &Path) -> Result<()> {
    remove_file(path).map_err(|e| Error::io(Place::file(path.display()), "cannot remove", e))
}

/// Removes a file as [`remove`] does, with an error of the host.
pub(crate) fn remove_file(path: &Path) -> io::Result<()> {
    step()?;
    if is_lost() {
        return Ok(());
    }
    match unlink(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(e),
        Ok(()) => sync_parent(path),
    }
}

fn unlink(path: &Path) -> io::Result<()> {
    retry(|| fs::remove_file(path))
}

/// Metadata of what a path leads to.
pub(crate) fn metadata(path: &Path) -> io::Result<fs::Metadata> {
    retry(|| fs::metadata(path))
}

/// Locks a file for this process. False if another one has the lock.
pub(crate) fn try_lock(file: &File) -> io::Result<bool> {
    match retry(|| flock(file, FlockOperation::NonBlockingLockExclusive)) {
        Err(Errno::WOULDBLOCK) => Ok(false),
        locked => locked.map(|()| true).map_err(io::Error::from),
    }
}

/// Paths in a directory, in any order.
pub(crate) fn list(dir: &Path) -> io::Result<Vec<PathBuf>> {
    retry(|| fs::read_dir(dir)?.map(|entry| Ok(entry?.path())).collect())
}

/// Name for a file until it is complete.
pub(crate) fn temporary(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(NEW);
    path.with_file_name(name)
}

fn write(path: &Path, bytes: &[u8]) -> io::Result<PathBuf> {
    let temporary = temporary(path);
    step()?;
    let written = (|| {
        let mut file = File::create(&temporary)?;
        match is_lost() {
            true => file.set_len(bytes.len() as u64)?,
            false => file.write_all(bytes)?,
        }
        file.sync_all()
    })();
    if let Err(e) = written {
        // A part takes space on a full disk.
        let _ = unlink(&temporary);
        return Err(e);
    }
    Ok(temporary)
}

/// Makes the names of a directory durable.
pub(crate) fn sync_parent(path: &Path) -> io::Result<()> {
    let parent = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
}

/// Comes before each change of a store. Tests make it fail from some step on, as if the process were killed there.
#[cfg(not(test))]
#[expect(clippy::unnecessary_wraps, reason = "it fails in tests")]
pub(crate) fn step() -> io::Result<()> {
    Ok(())
}

#[cfg(test)]
pub(crate) use faults::step;

#[cfg(test)]
pub(crate) mod faults {
    use std::cell::Cell;
    use std::io;

    thread_local! {
        static LEFT: Cell<Option<u32>> = const { Cell::new(None) };
    }

    /// Lets this thread take `steps` steps, and fail at all later ones. `None`: no limit.
    pub(crate) fn limit(steps: Option<u32>) {
        LEFT.set(steps);
    }

    pub(crate) fn step() -> io::Result<()> {
        match LEFT.get() {
            None => Ok(()),
            Some(0) => Err(io::Error::other("killed")),
            Some(left) => {
                LEFT.set(Some(left - 1));
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{FileType, Mode, mknodat};

    /// Whoever can write to a store may make a FIFO, which a reader would wait for.
    #[test]
    fn a_fifo_in_place_of_a_file_is_no_hang() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fifo");
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let read = read(&path, 10).unwrap_err();
        assert_eq!(read.kind(), io::ErrorKind::InvalidData);
        assert!(open(dir.path()).is_err());
    }
}
