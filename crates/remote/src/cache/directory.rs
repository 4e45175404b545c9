//! Directory of cached images, and the bound on its size.

use super::hold::Hold;
use super::state::StateFile;
use super::{CHUNK, ImageCache, LONG_CHUNK};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;
use tuff_store::PrivateDir;

/// File with the number of the format of the directory.
const FORMAT_FILE: &str = "cache.format";

/// Number of the format. Format 1, which has no such file, kept bytes under names that others could have given them.
const FORMAT: &[u8] = b"2\n";

/// Suffix of the files of documents.
pub(super) const DOCUMENT_SUFFIX: &str = ".doc";

/// Files of an image. The state comes last: without it the others would not be found again.
const KINDS: [&str; 4] = ["image", "tree", "hold", "state"];

/// Directory that several processes of one user share.
pub(crate) struct Directory {
    dir: PrivateDir,
    /// Largest size of all files. Unit: bytes.
    max: u64,
    /// Bytes stored since the size was last compared with `max`.
    stored: AtomicU64,
}

/// Image in the directory, as the search for something to evict sees it.
struct Found {
    key: String,
    used: SystemTime,
    /// Space on the disk. Unit: bytes.
    size: u64,
}

impl Directory {
    /// Opens a directory, and creates it for this user alone. Images in an older format are removed.
    ///
    /// # Errors
    /// `PermissionDenied` if others can change the directory; other errors of the host.
    pub(crate) fn open(path: &Path, max: u64) -> io::Result<Self> {
        let directory = Self {
            dir: PrivateDir::open(path)?,
            max,
            stored: AtomicU64::new(0),
        };
        directory.remove_old_format()?;
        Ok(directory)
    }

    /// Removes the images in an older format. Those in use stay: no name of this format leads to them, and the next process
    /// removes them.
    fn remove_old_format(&self) -> io::Result<()> {
        let format = self.dir.file(FORMAT_FILE)?;
        let mut number = Vec::new();
        (&format).take(16).read_to_end(&mut number)?;
        if number == FORMAT {
            return Ok(());
        }
        let mut is_empty = true;
        for old in self.found()? {
            is_empty &= self.remove(&old.key)?;
        }
        match is_empty {
            true => {
                format.set_len(0)?;
                format.write_all_at(FORMAT, 0)
            }
            false => Ok(()),
        }
    }

    fn file(&self, key: &str, kind: &str) -> io::Result<File> {
        self.dir.file(&format!("{key}.{kind}"))
    }

    /// Opens the image `key` of `size` bytes in chunks of `chunk` bytes, and keeps other processes from removing it.
    pub(crate) fn image(&self, key: &str, size: u64, chunk: u64) -> io::Result<ImageCache> {
        loop {
            let state = self.file(key, "state")?;
            state.lock_shared()?;
            // Whoever removed the file held its lock.
            if state.metadata()?.nlink() == 0 {
                continue;
            }
            state.set_modified(SystemTime::now())?;
            return self.wrap(key, state, size, chunk);
        }
    }

    fn wrap(&self, key: &str, state: File, size: u64, chunk: u64) -> io::Result<ImageCache> {
        let data = self.file(key, "image")?;
        let image = ImageCache::new(data, state, size, chunk)?;
        Ok(image.with_hold(self.file(key, "hold")?))
    }

    /// Keeps every process from evicting chunks of an image in use, as long as the value lives.
    pub(crate) fn hold(&self, key: &str) -> io::Result<Hold> {
        Hold::new(self.file(key, "hold")?)
    }

    /// Path of the file with the bytes of an image, for messages and mounts.
    pub(crate) fn image_path(&self, key: &str) -> PathBuf {
        self.dir.path().join(format!("{key}.image"))
    }

    /// File with the bytes of an image, open for reading.
    pub(crate) fn image_file(&self, key: &str) -> io::Result<File> {
        self.dir.read(&format!("{key}.image"))
    }

    /// File with the bytes of an image, in which hash blocks are kept at their places.
    pub(crate) fn writable_image_file(&self, key: &str) -> io::Result<File> {
        // Without a state the file would not be found again.
        self.file(key, "state")?;
        self.file(key, "image")
    }

    /// Names of other images than `key`, those used last first.
    pub(crate) fn others(&self, key: &str) -> Vec<String> {
        let mut found = self.found().unwrap_or_default();
        found.sort_by_key(|found| std::cmp::Reverse(found.used));
        let keys = found.into_iter().map(|found| found.key);
        keys.filter(|other| other != key).collect()
    }

    /// File with the chunk index of an image, open for reading.
    pub(crate) fn chunk_index(&self, key: &str) -> io::Result<File> {
        self.dir.read(&format!("{key}.tree"))
    }

    /// Stores the chunk index of an image.
    pub(crate) fn store_chunk_index(&self, key: &str, bytes: &[u8]) -> io::Result<()> {
        self.store_file(&format!("{key}.tree"), bytes)
    }

    /// Stores a file under its final name once it is complete.
    fn store_file(&self, file: &str, bytes: &[u8]) -> io::Result<()> {
        /// Number of the next temporary name of this process.
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let temporary = format!("{file}-{}-{number}", std::process::id());
        let write = || {
            let mut written = self.dir.file(&temporary)?;
            written.set_len(0)?;
            written.write_all(bytes)?;
            self.dir.rename(&temporary, file)
        };
        write().inspect_err(|_| {
            let _ = self.dir.remove(&temporary);
        })
    }

    /// Largest size of all files. Unit: bytes.
    pub(super) fn max(&self) -> u64 {
        self.max
    }

    /// File with a document, open for reading.
    pub(super) fn document(&self, file: &str) -> io::Result<File> {
        self.dir.read(file)
    }

    /// Stores a document under its final name once it is complete.
    pub(super) fn store_document(&self, file: &str, bytes: &[u8]) -> io::Result<()> {
        self.store_file(file, bytes)
    }

    /// Removes the documents that were not used for longest, until there are at most `count` of `size` bytes.
    pub(super) fn bound_documents(&self, count: usize, size: u64) -> io::Result<()> {
        let mut found = self.documents()?;
        found.sort_by_key(|(_, used, _)| std::cmp::Reverse(*used));
        let mut total = 0;
        for (number, (name, _, len)) in found.into_iter().enumerate() {
            total += len;
            if number >= count || total > size {
                self.dir.remove(&name)?;
            }
        }
        Ok(())
    }

    /// Names of all documents, times of their last use, and lengths. What killed processes left counts, too.
    fn documents(&self) -> io::Result<Vec<(String, SystemTime, u64)>> {
        let mut found = Vec::new();
        for name in self.dir.names()? {
            let name = name.to_str().filter(|name| name.contains(DOCUMENT_SUFFIX));
            let Some(name) = name else {
                continue;
            };
            if let Some(meta) = self.dir.metadata(name)? {
                found.push((name.to_owned(), meta.modified()?, meta.len()));
            }
        }
        Ok(found)
    }

    /// Counts bytes that were stored, and evicts others if the directory grows beyond its bound: as
    /// [`shrink`](Self::shrink) does. Returns false if the directory stays too large.
    pub(crate) fn charge(&self, bytes: u64, image: Option<&ImageCache>) -> io::Result<bool> {
        let step = self.step();
        let before = self.stored.fetch_add(bytes, Ordering::Relaxed);
        if before + bytes < step {
            return Ok(true);
        }
        self.stored.store(0, Ordering::Relaxed);
        self.shrink(step, image)
    }

    /// True if an image of `size` bytes fits into the directory, were it the only one.
    pub(crate) fn has_room_for(&self, size: u64) -> bool {
        size.saturating_add(self.step()) <= self.max
    }

    /// Bytes between two comparisons with the bound.
    fn step(&self) -> u64 {
        (self.max / 16).clamp(LONG_CHUNK, 64 << 20)
    }

    /// Evicts until another `room` bytes fit: unused images, then chunks of `image`, then of images in use elsewhere.
    /// Without `image` only unused images. Returns false if there is no room.
    pub(crate) fn shrink(&self, room: u64, image: Option<&ImageCache>) -> io::Result<bool> {
        let lock = self.dir.file("lock")?;
        if lock.try_lock().is_err() {
            // Another process is at it.
            return Ok(true);
        }
        let mut found = self.found()?;
        let documents = self.documents()?.into_iter().map(|(_, _, len)| len);
        let mut total: u64 = found.iter().map(|f| f.size).chain(documents).sum();
        if total + room <= self.max {
            return Ok(true);
        }
        let target = self.max.saturating_sub(room).saturating_sub(self.max / 8);
        found.sort_by_key(|f| f.used);
        let mut in_use = Vec::new();
        for old in found {
            if total <= target {
                return Ok(true);
            }
            match self.remove(&old.key)? {
                true => total -= old.size,
                false => in_use.push(old),
            }
        }
        let Some(image) = image else {
            return Ok(total + room <= self.max);
        };
        if total > target {
            total -= image.evict(total - target)?.min(total);
        }
        for other in in_use {
            if total <= target {
                break;
            }
            let size = self.image_file(&other.key)?.metadata()?.len();
            let state = self.file(&other.key, "state")?;
            // A process that has just begun has written neither.
            let stated = StateFile::stated(&state).unwrap_or_default();
            let chunk = [CHUNK, LONG_CHUNK]
                .into_iter()
                .find(|chunk| stated == (*chunk, size));
            if let Some(chunk) = chunk {
                let other = self.wrap(&other.key, state, size, chunk)?;
                total -= other.evict(total - target)?.min(total);
            }
        }
        Ok(total + room <= self.max)
    }

    /// Removes an image that no process uses. Returns false if one does.
    fn remove(&self, key: &str) -> io::Result<bool> {
        let state = self.file(key, "state")?;
        if state.try_lock().is_err() {
            return Ok(false);
        }
        for kind in KINDS {
            self.dir.remove(&format!("{key}.{kind}"))?;
        }
        Ok(true)
    }

    fn found(&self) -> io::Result<Vec<Found>> {
        let mut found = Vec::new();
        for name in self.dir.names()? {
            let Some(key) = name.to_str().and_then(|name| name.strip_suffix(".state")) else {
                continue;
            };
            let meta = |kind: &str| {
                let found = self.dir.metadata(format!("{key}.{kind}"));
                found.ok().flatten()
            };
            let Some(state) = meta("state") else {
                continue;
            };
            let files = [Some(&state), meta("image").as_ref(), meta("tree").as_ref()]
                .map(|m| m.map_or(0, |m| m.blocks() * 512));
            found.push(Found {
                key: key.to_owned(),
                used: state.modified()?,
                size: files.iter().sum(),
            });
        }
        Ok(found)
    }

    /// Size of all images in the directory. Unit: bytes.
    #[cfg(test)]
    pub(crate) fn size(&self) -> u64 {
        self.found().unwrap().iter().map(|f| f.size).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    struct Dir(PathBuf);

    impl Dir {
        fn new(name: &str) -> Self {
            Self(tuff_testkit::unused_path(&format!("cache-{name}")))
        }
    }

    impl Drop for Dir {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn files_are_for_this_user_alone() {
        let dir = Dir::new("mode");
        let cache = Directory::open(&dir.0, 1 << 30).unwrap();
        let image = cache.image("k", CHUNK, CHUNK).unwrap();
        image.store(0, &vec![1; CHUNK as usize]).unwrap();
        cache.store_chunk_index("k", b"index").unwrap();
        cache.shrink(0, Some(&image)).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&dir.0), 0o700);
        for entry in fs::read_dir(&dir.0).unwrap() {
            assert_eq!(mode(&entry.unwrap().path()), 0o600);
        }
    }

    #[test]
    fn unused_images_go_first_and_the_bound_holds() {
        let dir = Dir::new("bound");
        let max = CHUNK * 16;
        let cache = Directory::open(&dir.0, max).unwrap();
        let chunk = vec![1; CHUNK as usize];
        let old = cache.image("old", CHUNK * 4, CHUNK).unwrap();
        for n in 0..4 {
            old.store(n, &chunk).unwrap();
        }
        drop(old);
        let image = cache.image("new", CHUNK * 64, CHUNK).unwrap();
        for n in 0..64 {
            let bytes = image.store(n, &chunk).unwrap();
            cache.charge(bytes, Some(&image)).unwrap();
            assert!(cache.size() <= max + CHUNK, "{n}: {}", cache.size());
        }
        assert!(!dir.0.join("old.image").exists());
        assert!(image.is_present(63));
    }

    #[test]
    fn an_image_in_use_is_not_removed() {
        let dir = Dir::new("use");
        let cache = Directory::open(&dir.0, CHUNK * 4).unwrap();
        let other = cache.image("other", CHUNK * 8, CHUNK).unwrap();
        other.store(0, &vec![1; CHUNK as usize * 8]).unwrap();
        let image = cache.image("mine", CHUNK, CHUNK).unwrap();
        cache.shrink(0, Some(&image)).unwrap();
        assert!(dir.0.join("other.state").exists());
        assert!(cache.size() <= CHUNK * 4);
        // The chunks that are left are read, the rest is absent.
        let mut buf = [0; 4096];
        for n in 0..8 {
            if other.read(n, 0, &mut buf, |_| true) {
                assert!(buf.iter().all(|b| *b == 1));
            }
        }
    }
}
