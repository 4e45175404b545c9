//! Cached chunks of one image.

use super::IMAGE_MAX;
use super::hold::unless_held;
use super::state::{Entry, StateFile};
use rustix::fs::{FallocateFlags, copy_file_range, fallocate, fstatfs};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use xxhash_rust::xxh3::xxh3_64;

/// Chunks of an image in its sparse file. Many threads and processes read and write them at once.
pub(crate) struct ImageCache {
    data: File,
    state: StateFile,
    size: u64,
    /// Length of each chunk but the last one. Unit: bytes.
    chunk: u64,
    /// Chunks in groups of [`PAGE`], allocated on first use: the size of an image is only a statement of its server.
    pages: Box<[OnceLock<Box<[Chunk]>>]>,
    /// Serializes changes within this process; a lock of `data` does so between processes.
    change: Mutex<()>,
    /// Next chunk that [`evict`](Self::evict) looks at.
    hand: AtomicU64,
    /// File with a lock and a mark while the image must stay complete.
    hold: Option<File>,
    /// True if files of this filesystem can share space.
    is_clonable: bool,
}

/// Filesystems whose files can share space, by the type that `statfs` returns.
const CLONABLE: [i64; 2] = [0x5846_5342, 0x9123_683E];

/// Number of chunks whose knowledge is allocated at once.
const PAGE: u64 = 1024;

/// Knowledge of this process about a chunk.
#[derive(Default)]
struct Chunk {
    /// Generation that this process has verified.
    verified: AtomicU64,
    /// Set by each read, cleared by the clock that selects chunks to evict.
    used: AtomicBool,
    /// Set by each read that the trace counts.
    is_traced: AtomicBool,
}

impl ImageCache {
    /// Wraps the open files of an image of `size` bytes, at most [`IMAGE_MAX`], in chunks of `chunk` bytes.
    pub(crate) fn new(data: File, state: File, size: u64, chunk: u64) -> io::Result<Self> {
        if size > IMAGE_MAX {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        data.lock()?;
        let state = StateFile::new(state, size, chunk);
        data.unlock()?;
        let state = state?;
        if data.metadata()?.len() != size {
            data.set_len(size)?;
        }
        let filesystem = fstatfs(&data)?.f_type;
        Ok(Self {
            is_clonable: CLONABLE.contains(&filesystem),
            data,
            state,
            size,
            chunk,
            pages: (0..size.div_ceil(chunk).div_ceil(PAGE))
                .map(|_| OnceLock::new())
                .collect(),
            change: Mutex::default(),
            hand: AtomicU64::new(0),
            hold: None,
        })
    }

    /// Evicts nothing while the image is protected by its file `hold`.
    pub(crate) fn with_hold(self, hold: File) -> Self {
        Self {
            hold: Some(hold),
            ..self
        }
    }

    /// Bytes of the image that are in the cache.
    pub(crate) fn present_bytes(&self) -> io::Result<u64> {
        let present = self.state.present(self.len())?;
        Ok(present.iter().map(|n| self.chunk_len(*n) as u64).sum())
    }

    /// True if the whole image is in the cache.
    pub(crate) fn is_complete(&self) -> bool {
        let present = self.state.present(self.len());
        present.is_ok_and(|present| present.len() as u64 == self.len())
    }

    /// Reads a whole chunk, and compares its checksum even if this process has done so before. `None` if the chunk is
    /// not in the cache, or damaged there.
    pub(crate) fn read_again(
        &self,
        chunk: u64,
        verify: impl FnOnce(&[u8]) -> bool,
    ) -> Option<Vec<u8>> {
        // No generation of a chunk that is present is 0.
        self.known(chunk).verified.store(0, Ordering::Release);
        let mut bytes = vec![0; self.chunk_len(chunk)];
        self.read(chunk, 0, &mut bytes, verify).then_some(bytes)
    }

    /// Size of the image. Unit: bytes.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Length of each chunk but the last one. Unit: bytes.
    pub(crate) fn chunk_size(&self) -> u64 {
        self.chunk
    }

    /// Number of chunks of the image.
    pub(crate) fn len(&self) -> u64 {
        self.size.div_ceil(self.chunk)
    }

    /// Knowledge of this process about a chunk of the image.
    fn known(&self, chunk: u64) -> &Chunk {
        let page = || (0..PAGE).map(|_| Chunk::default()).collect();
        // Fits: the pages are in memory, and PAGE is small.
        let page = self.pages[(chunk / PAGE) as usize].get_or_init(page);
        &page[(chunk % PAGE) as usize]
    }

    /// Length of a chunk. The last one may be short. Unit: bytes.
    fn chunk_len(&self, chunk: u64) -> usize {
        // Fits: at most 128 KiB.
        self.size.saturating_sub(chunk * self.chunk).min(self.chunk) as usize
    }

    /// Returns true if the chunk is in the cache. Its bytes are not verified.
    pub(crate) fn is_present(&self, chunk: u64) -> bool {
        self.state.entry(chunk).is_ok_and(Entry::is_present)
    }

    /// Returns true if this process has read the chunk from the cache since it was stored, or since it was last spared from
    /// eviction.
    pub(crate) fn was_read(&self, chunk: u64) -> bool {
        self.known(chunk).used.load(Ordering::Relaxed)
    }

    /// Notes a read of a chunk, from the cache or not.
    pub(crate) fn note_read(&self, chunk: u64) {
        self.known(chunk).is_traced.store(true, Ordering::Relaxed);
    }

    /// Returns true if a read of the chunk was noted. Chunks after the end were not read.
    pub(crate) fn was_ever_read(&self, chunk: u64) -> bool {
        let page = usize::try_from(chunk / PAGE).ok();
        let page = page.and_then(|page| self.pages.get(page)?.get());
        // Fits: PAGE is small.
        page.is_some_and(|page| {
            page[(chunk % PAGE) as usize]
                .is_traced
                .load(Ordering::Relaxed)
        })
    }

    /// Reads a part of a chunk. Returns false if the chunk is not in the cache, or damaged there.
    ///
    /// The first read of a chunk by this process compares its checksum and calls `verify` with all its bytes.
    pub(crate) fn read(
        &self,
        chunk: u64,
        skip: usize,
        buf: &mut [u8],
        verify: impl FnOnce(&[u8]) -> bool,
    ) -> bool {
        // A cache that cannot be read is as good as an empty one.
        self.try_read(chunk, skip, buf, verify).unwrap_or(false)
    }

    fn try_read(
        &self,
        chunk: u64,
        skip: usize,
        buf: &mut [u8],
        verify: impl FnOnce(&[u8]) -> bool,
    ) -> io::Result<bool> {
        let entry = self.state.entry(chunk)?;
        if !entry.is_present() {
            return Ok(false);
        }
        let known = self.known(chunk);
        let at = chunk * self.chunk;
        let is_verified = known.verified.load(Ordering::Acquire) == entry.generation;
        if is_verified {
            self.data.read_exact_at(buf, at + skip as u64)?;
        } else {
            let mut whole = vec![0; self.chunk_len(chunk)];
            self.data.read_exact_at(&mut whole, at)?;
            if xxh3_64(&whole) != entry.checksum || !verify(&whole) {
                self.discard(chunk, entry)?;
                return Ok(false);
            }
            buf.copy_from_slice(&whole[skip..skip + buf.len()]);
        }
        // Another process may have evicted the chunk meanwhile, which leaves zeros.
        if self.state.entry(chunk)? != entry {
            return Ok(false);
        }
        known.verified.store(entry.generation, Ordering::Release);
        known.used.store(true, Ordering::Relaxed);
        Ok(true)
    }

    /// Runs `f` while no other thread or process changes chunks of this image.
    fn changing<T>(&self, f: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let _guard = self.change.lock().unwrap_or_else(PoisonError::into_inner);
        self.data.lock()?;
        let result = f();
        self.data.unlock()?;
        result
    }

    /// Stores verified bytes that begin with chunk `first`: whole chunks, or the end of the image. Returns the number
    /// of bytes written.
    pub(crate) fn store(&self, first: u64, bytes: &[u8]) -> io::Result<u64> {
        // Fits: a chunk is small.
        self.store_all((first..).zip(bytes.chunks(self.chunk as usize)), None)
    }

    /// The same for chunks with their bytes. `source`: the file and position of a single chunk that is elsewhere on this
    /// filesystem, which may then share the space on disk.
    pub(crate) fn store_all<'a>(
        &self,
        chunks: impl Iterator<Item = (u64, &'a [u8])>,
        source: Option<(&File, u64)>,
    ) -> io::Result<u64> {
        self.changing(|| {
            let mut written = 0;
            for (chunk, bytes) in chunks {
                debug_assert_eq!(bytes.len(), self.chunk_len(chunk));
                let entry = self.state.entry(chunk)?;
                if entry.is_present() {
                    continue;
                }
                let is_cloned = source.is_some_and(|(file, at)| {
                    self.is_clonable && self.clone_chunk(file, at, chunk, bytes)
                });
                if !is_cloned {
                    self.data.write_all_at(bytes, chunk * self.chunk)?;
                }
                let generation = entry.generation + 1;
                let checksum = xxh3_64(bytes);
                self.state.set(
                    chunk,
                    Entry {
                        checksum,
                        generation,
                    },
                )?;
                let known = self.known(chunk);
                known.verified.store(generation, Ordering::Release);
                written += bytes.len() as u64;
            }
            Ok(written)
        })
    }

    /// Lets a chunk share the space of a range of another file. Returns false if it does not have these bytes then.
    fn clone_chunk(&self, file: &File, at: u64, chunk: u64, bytes: &[u8]) -> bool {
        let (mut from, mut to) = (at, chunk * self.chunk);
        let end = from + bytes.len() as u64;
        while from < end {
            let left = (end - from) as usize; // fits: at most a chunk
            match copy_file_range(file, Some(&mut from), &self.data, Some(&mut to), left) {
                Ok(n) if n > 0 => {}
                _ => return false,
            }
        }
        // The other file may have changed since `bytes` were read there.
        let mut found = vec![0; bytes.len()];
        let read = self.data.read_exact_at(&mut found, chunk * self.chunk);
        read.is_ok() && found == bytes
    }

    /// Marks a damaged chunk as absent, unless it was replaced meanwhile.
    fn discard(&self, chunk: u64, damaged: Entry) -> io::Result<()> {
        self.changing(|| {
            if self.state.entry(chunk)? == damaged {
                self.state.set(chunk, damaged.removed())?;
            }
            Ok(())
        })
    }

    /// Evicts chunks that were not read for longest, about `requested` bytes. Returns the number of bytes freed.
    pub(crate) fn evict(&self, requested: u64) -> io::Result<u64> {
        match &self.hold {
            Some(hold) => unless_held(hold, || self.evict_chunks(requested)),
            None => self.evict_chunks(requested),
        }
    }

    fn evict_chunks(&self, requested: u64) -> io::Result<u64> {
        let mut freed = 0;
        let present = self.state.present(self.len())?;
        let hand = self.hand.load(Ordering::Relaxed);
        let start = present.partition_point(|chunk| *chunk < hand);
        // After one round every chunk is marked as unused.
        let rounds = present.iter().cycle().skip(start);
        for chunk in rounds.take(present.len() * 2) {
            if freed >= requested {
                break;
            }
            self.hand.store(chunk + 1, Ordering::Relaxed);
            if !self.known(*chunk).used.swap(false, Ordering::Relaxed) {
                freed += self.evict_chunk(*chunk)?;
            }
        }
        Ok(freed)
    }

    /// Marks all chunks as absent. Their bytes stay where a mount of the kernel may read them.
    pub(crate) fn forget_all(&self) -> io::Result<()> {
        self.changing(|| {
            for chunk in self.state.present(self.len())? {
                let entry = self.state.entry(chunk)?;
                self.state.set(chunk, entry.removed())?;
            }
            Ok(())
        })
    }

    fn evict_chunk(&self, chunk: u64) -> io::Result<u64> {
        self.changing(|| {
            let entry = self.state.entry(chunk)?;
            if !entry.is_present() {
                return Ok(0);
            }
            // Readers must see the entry before they can see the hole.
            self.state.set(chunk, entry.removed())?;
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            fallocate(&self.data, flags, chunk * self.chunk, self.chunk)?;
            Ok(self.chunk)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::CHUNK;

    fn files() -> (File, File) {
        let file = || tuff_store::anonymous(&std::env::temp_dir()).unwrap();
        (file(), file())
    }

    fn again(file: &File) -> File {
        file.try_clone().unwrap()
    }

    #[test]
    fn chunks_are_read_as_they_were_stored() {
        let (data, state) = files();
        let size = CHUNK * 2 + 5;
        let cache = ImageCache::new(data, state, size, CHUNK).unwrap();
        let bytes: Vec<u8> = (0..size).map(|n| (n % 251) as u8).collect();
        let mut buf = [0; 5];
        assert!(!cache.read(2, 0, &mut buf, |_| true));
        let tail = &bytes[CHUNK as usize..];
        assert_eq!(cache.store(1, tail).unwrap(), CHUNK + 5);
        assert_eq!(cache.store(1, tail).unwrap(), 0);
        assert!(cache.read(2, 0, &mut buf, |_| true));
        assert_eq!(buf, bytes[bytes.len() - 5..]);
        assert!(!cache.is_present(0) && cache.is_present(1));
    }

    #[test]
    fn a_stated_size_allocates_nothing() {
        let (data, state) = files();
        let cache = ImageCache::new(again(&data), again(&state), IMAGE_MAX, CHUNK).unwrap();
        let last = cache.len() - 1;
        let chunk = vec![7; CHUNK as usize];
        cache.store(last, &chunk).unwrap();
        assert_eq!(cache.present_bytes().unwrap(), CHUNK);
        assert!(cache.is_present(last) && !cache.is_complete());
        let mut buf = [0; 5];
        assert!(cache.read(last, 9, &mut buf, |_| true));
        assert!(!cache.read(5, 9, &mut buf, |_| true));
        let allocated = cache.pages.iter().filter(|page| page.get().is_some());
        assert_eq!(allocated.count(), 1);
        // Twice: the first round only marks the chunk as unused.
        assert_eq!(cache.evict(1).unwrap(), CHUNK);
        assert_eq!(cache.present_bytes().unwrap(), 0);
        assert!(ImageCache::new(data, state, IMAGE_MAX + 1, CHUNK).is_err());
    }

    #[test]
    fn forgotten_chunks_are_absent_and_can_be_stored_again() {
        let (data, state) = files();
        let cache = ImageCache::new(data, state, CHUNK * 3, CHUNK).unwrap();
        cache.store(1, &vec![7; 2 * CHUNK as usize]).unwrap();
        cache.forget_all().unwrap();
        assert_eq!(cache.present_bytes().unwrap(), 0);
        cache.store(1, &vec![8; CHUNK as usize]).unwrap();
        let mut buf = [0; 5];
        assert!(cache.read(1, 0, &mut buf, |_| true));
        assert_eq!(buf, [8; 5]);
    }

    #[test]
    fn a_damaged_chunk_is_absent() {
        let (data, state) = files();
        let cache = ImageCache::new(again(&data), again(&state), CHUNK, CHUNK).unwrap();
        cache.store(0, &vec![7; CHUNK as usize]).unwrap();
        data.write_all_at(&[8], 100).unwrap();
        // The process that stored the chunk has verified it. Another one has not.
        let other = ImageCache::new(data, state, CHUNK, CHUNK).unwrap();
        let mut buf = [0; 10];
        assert!(!other.read(0, 0, &mut buf, |_| true));
        assert!(!cache.read(0, 0, &mut buf, |_| true));
    }

    #[test]
    fn a_damaged_entry_is_absent() {
        let (data, state) = files();
        let cache = ImageCache::new(data, again(&state), CHUNK, CHUNK).unwrap();
        state.write_all_at(&[0xFF; 16], 32).unwrap();
        assert!(cache.is_present(0));
        assert!(!cache.read(0, 0, &mut [0; 10], |_| true));
        assert!(!cache.is_present(0));
    }

    #[test]
    fn a_chunk_that_the_verifier_refuses_is_absent() {
        let (data, state) = files();
        let cache = ImageCache::new(again(&data), again(&state), CHUNK, CHUNK).unwrap();
        cache.store(0, &vec![7; CHUNK as usize]).unwrap();
        let other = ImageCache::new(data, state, CHUNK, CHUNK).unwrap();
        assert!(!other.read(0, 0, &mut [0; 10], |_| false));
        assert!(!other.is_present(0));
    }

    #[test]
    fn state_of_another_size_is_not_used() {
        let (data, state) = files();
        let cache = ImageCache::new(again(&data), again(&state), CHUNK, CHUNK).unwrap();
        cache.store(0, &vec![7; CHUNK as usize]).unwrap();
        let other = ImageCache::new(data, state, CHUNK * 2, CHUNK).unwrap();
        assert!(!other.is_present(0) && !other.is_present(1));
    }

    #[test]
    fn readers_never_see_the_hole_of_an_evicted_chunk() {
        let (data, state) = files();
        let size = CHUNK * 4;
        let mine = ImageCache::new(again(&data), again(&state), size, CHUNK).unwrap();
        let other = ImageCache::new(data, state, size, CHUNK).unwrap();
        let bytes = vec![7; size as usize];
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..300 {
                    other.evict(size).unwrap();
                    other.store(0, &bytes).unwrap();
                }
                done.store(true, Ordering::Relaxed);
            });
            let mut buf = vec![0; 4096];
            while !done.load(Ordering::Relaxed) {
                for chunk in 0..4 {
                    if mine.read(chunk, 8192, &mut buf, |_| true) {
                        assert!(buf.iter().all(|b| *b == 7));
                    }
                }
            }
        });
    }
}
