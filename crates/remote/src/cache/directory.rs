//! Directory of cached images, and the bound on its size.

use super::hold::Hold;
use super::{CHUNK, ImageCache};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

/// Directory that several processes share.
pub(crate) struct Directory {
    path: PathBuf,
    /// Largest size of all files. Unit: bytes.
    max: u64,
    /// Bytes stored since the size was last compared with `max`.
    stored: AtomicU64,
}

/// Image in the directory, as the search for something to evict sees it.
struct Found {
    key: String,
    used: SystemTime,
    size: u64,
}

impl Directory {
    /// Opens a directory, and creates it for this user alone.
    pub(crate) fn open(path: &Path, max: u64) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(path)?;
        Ok(Self {
            // A server in the background changes its working directory.
            path: std::path::absolute(path)?,
            max,
            stored: AtomicU64::new(0),
        })
    }

    fn file(&self, key: &str, kind: &str) -> PathBuf {
        self.path.join(format!("{key}.{kind}"))
    }

    /// Opens the image `key` of `size` bytes, and keeps other processes from removing it.
    pub(crate) fn image(&self, key: &str, size: u64) -> io::Result<ImageCache> {
        loop {
            let state = open(&self.file(key, "state"))?;
            state.lock_shared()?;
            // Whoever removed the file held its lock.
            if state.metadata()?.nlink() == 0 {
                continue;
            }
            state.set_modified(SystemTime::now())?;
            return self.wrap(key, state, size);
        }
    }

    fn wrap(&self, key: &str, state: File, size: u64) -> io::Result<ImageCache> {
        let data = open(&self.file(key, "image"))?;
        let image = ImageCache::new(data, state, size)?;
        Ok(image.with_hold(open(&self.file(key, "hold"))?))
    }

    /// Keeps every process from evicting chunks of an image in use, as long as the value lives.
    pub(crate) fn hold(&self, key: &str) -> io::Result<Hold> {
        Hold::new(open(&self.file(key, "hold"))?)
    }

    /// Path of the file with the bytes of an image.
    pub(crate) fn image_file(&self, key: &str) -> PathBuf {
        self.file(key, "image")
    }

    /// Names of other images than `key`, those used last first.
    pub(crate) fn others(&self, key: &str) -> Vec<String> {
        let mut found = self.found().unwrap_or_default();
        found.sort_by_key(|found| std::cmp::Reverse(found.used));
        let keys = found.into_iter().map(|found| found.key);
        keys.filter(|other| other != key).collect()
    }

    /// Path of the hash tree of an image.
    pub(crate) fn tree(&self, key: &str) -> PathBuf {
        self.file(key, "tree")
    }

    /// Stores the hash tree of an image, which comes in parts, under its final name once it is complete. The outer error is
    /// that of a part, the inner one that of the file.
    pub(crate) fn store_tree<E>(
        &self,
        key: &str,
        parts: impl IntoIterator<Item = Result<Vec<u8>, E>>,
    ) -> Result<io::Result<()>, E> {
        let path = self.file(key, &format!("tree-{}", std::process::id()));
        let written = self.write_parts(&path, parts);
        let done = written.map(|written| written.and_then(|()| fs::rename(&path, self.tree(key))));
        if !matches!(done, Ok(Ok(()))) {
            let _ = fs::remove_file(&path);
        }
        done
    }

    fn write_parts<E>(
        &self,
        path: &Path,
        parts: impl IntoIterator<Item = Result<Vec<u8>, E>>,
    ) -> Result<io::Result<()>, E> {
        let file = open(path).and_then(|file| file.set_len(0).map(|()| file));
        let mut file = match file {
            Ok(file) => file,
            Err(e) => return Ok(Err(e)),
        };
        for part in parts {
            if let Err(e) = io::Write::write_all(&mut file, &part?) {
                return Ok(Err(e));
            }
        }
        Ok(Ok(()))
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
        (self.max / 16).clamp(CHUNK, 64 << 20)
    }

    /// Evicts until another `room` bytes fit: unused images, then chunks of `image`, then of images in use elsewhere.
    /// Without `image` only unused images. Returns false if there is no room.
    pub(crate) fn shrink(&self, room: u64, image: Option<&ImageCache>) -> io::Result<bool> {
        let lock = open(&self.path.join("lock"))?;
        if lock.try_lock().is_err() {
            // Another process is at it.
            return Ok(true);
        }
        let mut found = self.found()?;
        let mut total: u64 = found.iter().map(|f| f.size).sum();
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
            let size = fs::metadata(self.image_file(&other.key)).map_or(0, |m| m.len());
            let state = open(&self.file(&other.key, "state"))?;
            if size > 0 && state.metadata()?.len() > 0 {
                let other = self.wrap(&other.key, state, size)?;
                total -= other.evict(total - target)?.min(total);
            }
        }
        Ok(total + room <= self.max)
    }

    /// Removes an image that no process uses. Returns false if one does.
    fn remove(&self, key: &str) -> io::Result<bool> {
        let state = open(&self.file(key, "state"))?;
        if state.try_lock().is_err() {
            return Ok(false);
        }
        // The state comes last: without it the others would not be found again.
        for kind in ["image", "tree", "hold", "state"] {
            match fs::remove_file(self.file(key, kind)) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
                _ => {}
            }
        }
        Ok(true)
    }

    fn found(&self) -> io::Result<Vec<Found>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            let name = entry?.file_name();
            let Some(key) = name.to_str().and_then(|name| name.strip_suffix(".state")) else {
                continue;
            };
            let meta = |kind: &str| fs::metadata(self.file(key, kind)).ok();
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

/// Opens a file of the cache, and creates it for this user alone.
fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)
}

#[cfg(test)]
mod tests {
    use super::*;
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
        let image = cache.image("k", CHUNK).unwrap();
        image.store(0, &vec![1; CHUNK as usize]).unwrap();
        let parts = [b"tr", b"ee"].map(|part| Ok::<_, ()>(part.to_vec()));
        cache.store_tree("k", parts).unwrap().unwrap();
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
        let old = cache.image("old", CHUNK * 4).unwrap();
        for n in 0..4 {
            old.store(n, &chunk).unwrap();
        }
        drop(old);
        let image = cache.image("new", CHUNK * 64).unwrap();
        for n in 0..64 {
            let bytes = image.store(n, &chunk).unwrap();
            cache.charge(bytes, Some(&image)).unwrap();
            assert!(cache.size() <= max + CHUNK, "{n}: {}", cache.size());
        }
        assert!(!cache.file("old", "image").exists());
        assert!(image.is_present(63));
    }

    #[test]
    fn an_image_in_use_is_not_removed() {
        let dir = Dir::new("use");
        let cache = Directory::open(&dir.0, CHUNK * 4).unwrap();
        let other = cache.image("other", CHUNK * 8).unwrap();
        other.store(0, &vec![1; CHUNK as usize * 8]).unwrap();
        let image = cache.image("mine", CHUNK).unwrap();
        cache.shrink(0, Some(&image)).unwrap();
        assert!(cache.file("other", "state").exists());
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
