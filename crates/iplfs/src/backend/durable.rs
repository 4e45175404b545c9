//! Changes of small files and names, each durable when it returns.

use super::host::retry;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

#[cfg(feature = "broken-rules")]
mod kill {
    use std::cell::Cell;
    use std::io;

    thread_local! {
        static STEPS: Cell<Option<u64>> = const { Cell::new(None) };
    }

    /// Lets the changes of this thread fail after `steps` more of them, as if the process were killed there. `None`
    /// ends that. Returns the steps that were left.
    pub fn kill_after(steps: Option<u64>) -> Option<u64> {
        STEPS.replace(steps)
    }

    pub(super) fn step() -> io::Result<()> {
        match STEPS.get() {
            Some(0) => Err(io::Error::other("killed")),
            steps => {
                STEPS.set(steps.map(|steps| steps - 1));
                Ok(())
            }
        }
    }
}

#[cfg(feature = "broken-rules")]
pub use kill::kill_after;

/// Called before each change. Tests end the process here.
fn step() -> io::Result<()> {
    #[cfg(feature = "broken-rules")]
    kill::step()?;
    Ok(())
}

/// Makes the names in a directory durable.
pub(super) fn sync_dir(path: &Path) -> io::Result<()> {
    step()?;
    File::open(path)?.sync_all()
}

/// Makes the content of a file durable.
pub(super) fn sync(file: &File) -> io::Result<()> {
    step()?;
    file.sync_all()
}

/// Makes the content of several files or directories durable. Together they take little longer than one.
pub(super) fn sync_together(files: &[&File]) -> io::Result<()> {
    files.iter().try_for_each(|_| step())?;
    std::thread::scope(|scope| {
        let syncs: Vec<_> = files
            .iter()
            .map(|file| scope.spawn(|| file.sync_all()))
            .collect();
        syncs.into_iter().try_for_each(|sync| {
            let failed = |_| Err(io::Error::other("a sync panicked"));
            sync.join().unwrap_or_else(failed)
        })
    })
}

/// Creates a file, which must not exist. Neither name nor content is durable yet.
pub(super) fn create(path: &Path, bytes: &[u8]) -> io::Result<File> {
    step()?;
    let mut options = OpenOptions::new();
    let mut file = options.read(true).write(true).create_new(true).open(path)?;
    step()?;
    file.write_all(bytes)?;
    Ok(file)
}

/// Replaces the content of a file, or creates it. After a crash it has the old or the new content.
pub(super) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let temporary = path.with_extension("tmp");
    remove_file(&temporary)?;
    sync(&create(&temporary, bytes)?)?;
    rename(&temporary, path)?;
    path.parent().map_or(Ok(()), sync_dir)
}

/// Renames without making it durable.
pub(super) fn rename(from: &Path, to: &Path) -> io::Result<()> {
    step()?;
    retry(|| fs::rename(from, to))
}

/// Creates a directory, if it does not exist. Its name is not durable yet.
pub(super) fn make_dir(path: &Path) -> io::Result<()> {
    step()?;
    match retry(|| fs::create_dir(path)) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        other => other,
    }
}

/// Removes a file, if it exists. That is not durable yet.
pub(super) fn remove_file(path: &Path) -> io::Result<()> {
    step()?;
    absent_is_done(retry(|| fs::remove_file(path)))
}

/// Removes a directory of files, if it exists. That is not durable yet.
pub(super) fn remove_dir(path: &Path) -> io::Result<()> {
    let list = || -> io::Result<Vec<_>> {
        let entries = fs::read_dir(path)?;
        entries.map(|entry| entry.map(|e| e.path())).collect()
    };
    match retry(list) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        files => files?.iter().try_for_each(|file| remove_file(file))?,
    }
    step()?;
    absent_is_done(retry(|| fs::remove_dir(path)))
}

fn absent_is_done(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
