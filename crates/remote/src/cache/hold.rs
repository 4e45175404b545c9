//! Protection of complete images from eviction of their chunks.
//!
//! A user of the complete file holds a shared lock of the image's `hold` file and leaves a mark in it. The mark outlives a process
//! that is killed, because a mount of the kernel that the process made does so too: a hole in its file would read as zeros. A
//! marked image is only removed as a whole, which takes nothing from files that are open.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Use of the complete file of an image. Dropping it ends the protection.
pub(crate) struct Hold {
    file: File,
    /// True if this value has made the mark. Another one may belong to a process that was killed.
    has_marked: bool,
}

impl Hold {
    /// Protects an image whose `hold` file is open as `file`.
    pub(crate) fn new(file: File) -> io::Result<Self> {
        file.lock_shared()?;
        let has_marked = !is_marked(&file)?;
        if has_marked {
            file.write_all_at(&[1], 0)?;
        }
        Ok(Self { file, has_marked })
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        // The lock is exclusive if no one else uses the file. A mark that stays only delays eviction.
        if self.has_marked && self.file.try_lock().is_ok() {
            let _ = self.file.set_len(0);
        }
    }
}

/// Runs `evict` unless the image is protected. Returns 0 if it is.
pub(crate) fn unless_held(file: &File, evict: impl FnOnce() -> io::Result<u64>) -> io::Result<u64> {
    if file.try_lock().is_err() {
        return Ok(0);
    }
    let freed = match is_marked(file) {
        Ok(false) => evict(),
        Ok(true) => Ok(0),
        Err(e) => Err(e),
    };
    file.unlock()?;
    freed
}

fn is_marked(file: &File) -> io::Result<bool> {
    Ok(file.metadata()?.len() > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::OpenOptions;
    use std::path::Path;

    fn open(path: &Path) -> File {
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(false);
        options.open(path).unwrap()
    }

    #[test]
    fn the_mark_of_a_killed_process_protects_what_it_mounted() {
        let path = std::env::temp_dir().join(format!("tuff-hold-{}", std::process::id()));
        let evict = || unless_held(&open(&path), || Ok(7)).unwrap();
        assert_eq!(evict(), 7);
        let first = Hold::new(open(&path)).unwrap();
        let second = Hold::new(open(&path)).unwrap();
        assert_eq!(evict(), 0);
        drop(second);
        assert_eq!(evict(), 0);
        drop(first);
        assert_eq!(evict(), 7);
        // As if a process had been killed: the lock is gone, the mark is not.
        open(&path).write_all_at(&[1], 0).unwrap();
        assert_eq!(evict(), 0);
        drop(Hold::new(open(&path)).unwrap());
        assert_eq!(evict(), 0);
        std::fs::remove_file(&path).unwrap();
    }
}
