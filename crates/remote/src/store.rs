//! Remote images as stores for the reader of images.

use crate::cache::{Directory, Hold, ImageCache, LONG_CHUNK};
use crate::error::{Error, Kind, Result};
use crate::fetch::{self, Fetcher};
use crate::runtime::runtime;
use crate::stats::Stats;
use crate::verify::Verifier;
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tuff_store::{FileStore, ReadAt};
use tuff_verity::Root;

/// Bytes that a hint to read ahead fetches at most. Unit: bytes.
const HINT_MAX: u64 = 8 << 20;

/// Bytes of a read that are requested together. Those after them are requested as a hint to read ahead. Unit: bytes.
const READ_MAX: u64 = LONG_CHUNK;

/// Number of times that a chunk is looked for in a cache that other processes change.
const ATTEMPTS_MAX: u32 = 16;

/// Longest time between two looks for a complete image, which other processes may fill.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Image at a [`Location`](crate::Location), as a store whose bytes are fetched when they are read.
///
/// Reads return right bytes, or an error whose text names the image and the range.
pub struct RemoteStore {
    extent: Extent,
    place: String,
    source: Source,
}

/// Parts of an object, each of which is the start of the next one. Unit: bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    /// Image without its hash tree, if there is a root hash. It is all that reads of the image see.
    pub(crate) image: u64,
    /// Part that is verified while it is read: the image with its hash tree.
    pub(crate) verified: u64,
    /// Image with everything that belongs to it, such as parity, but without a chunk index.
    pub(crate) whole: u64,
}

impl Extent {
    /// Extent of an object of which all bytes are alike.
    fn all(size: u64) -> Self {
        Self {
            image: size,
            verified: size,
            whole: size,
        }
    }
}

/// Where the bytes of an image come from.
enum Source {
    /// File of this host, which is complete.
    Local { file: FileStore, path: PathBuf },
    /// Object that is fetched into the cache.
    Remote(Arc<Cached>),
}

/// Cached image with its source.
pub(crate) struct Cached {
    pub(crate) directory: Arc<Directory>,
    /// Name of the image in the cache.
    pub(crate) key: String,
    pub(crate) cache: Arc<ImageCache>,
    pub(crate) verifier: Option<Arc<Verifier>>,
    /// Root hash of the verifier, if it has one.
    pub(crate) root: Option<Root>,
    pub(crate) fetcher: Arc<Fetcher>,
    /// Parts that a start reads, as the manifest states. Unit: bytes.
    pub(crate) start: Vec<Range<u64>>,
    /// Process that opened the image.
    pub(crate) process: u32,
}

impl Cached {
    /// Returns false in the child of a fork, which has neither the threads nor the connections that fetch.
    fn is_of_this_process(&self) -> bool {
        self.process == std::process::id()
    }
}

/// Costs of a read: whether it waited, and whether it needed a request.
#[derive(Clone, Copy, Default)]
struct Access {
    has_waited: bool,
    /// True if bytes were neither there nor requested.
    has_missed: bool,
}

/// Complete image as a plain file, whose bytes stay as long as the value lives.
pub struct CompleteFile {
    path: PathBuf,
    file: File,
    /// Protection against eviction, and the image that it keeps in use.
    _hold: Option<(Hold, Arc<ImageCache>)>,
}

impl CompleteFile {
    /// Path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// File, open for reading.
    pub fn file(&self) -> &File {
        &self.file
    }
}

impl RemoteStore {
    /// Opens a local file.
    pub(crate) fn local(path: &Path, place: String) -> Result<Self> {
        let failed = |e| Error::new(Kind::Unavailable, &place, e);
        let file = FileStore::open(path).map_err(failed)?;
        let path = std::path::absolute(path).map_err(failed)?;
        Ok(Self {
            extent: Extent::all(file.size()),
            source: Source::Local { file, path },
            place,
        })
    }

    /// Wraps a cached image.
    pub(crate) fn remote(extent: Extent, place: String, cached: Cached) -> Self {
        Self {
            extent,
            place,
            source: Source::Remote(Arc::new(cached)),
        }
    }

    /// Location of the image, as messages show it.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// True if parts are verified when they are read, by a hash tree or a chunk index.
    pub fn verifies_parts(&self) -> bool {
        match &self.source {
            Source::Local { .. } => false,
            Source::Remote(cached) => cached.verifier.is_some(),
        }
    }

    /// Parts that a start reads, as the manifest of the image states, in the order in which it is wanted. It is a hint.
    pub fn stated_start(&self) -> &[Range<u64>] {
        match &self.source {
            Source::Local { .. } => &[],
            Source::Remote(cached) => &cached.start,
        }
    }

    /// Root hash that parts are verified by.
    pub(crate) fn root_hash(&self) -> Option<Root> {
        match &self.source {
            Source::Local { .. } => None,
            Source::Remote(cached) => cached.root,
        }
    }

    /// Digest of the whole object, if it is a blob of a registry.
    pub(crate) fn digest(&self) -> Option<String> {
        match &self.source {
            Source::Local { .. } => None,
            Source::Remote(cached) => {
                let identity = cached.fetcher.object().identity();
                identity.is_digest().then(|| identity.validator.clone())
            }
        }
    }

    /// Parts of the object.
    pub(crate) fn extent(&self) -> Extent {
        self.extent
    }

    /// Size of the object, with the chunk index of a blob. Unit: bytes.
    pub(crate) fn object_size(&self) -> u64 {
        match &self.source {
            Source::Local { .. } => self.extent.whole,
            Source::Remote(cached) => cached.fetcher.object().identity().size,
        }
    }

    /// Reads bytes of the object that are not verified, for the digest of the whole.
    pub(crate) fn read_unverified(&self, range: Range<u64>) -> Result<Vec<u8>> {
        match &self.source {
            Source::Local { .. } => Ok(Vec::new()),
            Source::Remote(cached) => {
                let object = cached.fetcher.object();
                runtime()?.block_on(object.read(range))
            }
        }
    }

    /// Reads bytes of the image and of the hash tree that follows it. Returns their number; 0 at the end.
    ///
    /// # Errors
    /// As [`read_at`](ReadAt::read_at).
    pub fn read_with_tree_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.read_before(self.extent.verified, buf, offset)
    }

    /// Fetches ranges of the image in their order, after what readers wait for and before the fill. Returns at once.
    pub fn prefetch(&self, ranges: &[Range<u64>]) {
        if let Source::Remote(cached) = &self.source {
            cached
                .fetcher
                .prefetch(cached.chunks(ranges, self.extent.verified));
        }
    }

    /// Fetches ranges that came with the image: as [`prefetch`](Self::prefetch), after its ranges. At most a third of the
    /// image and 64 MiB are fetched that no program has read, and only while the link is idle if programs read something else.
    pub fn prefetch_list(&self, ranges: &[Range<u64>]) {
        if let Source::Remote(cached) = &self.source {
            cached
                .fetcher
                .prefetch_list(cached.chunks(ranges, self.extent.verified));
        }
    }

    /// Fetches ranges that a reader is expected to want next, before all others that no reader waits for. Returns at once.
    pub fn read_ahead(&self, ranges: &[Range<u64>]) {
        if let Source::Remote(cached) = &self.source {
            for chunks in cached.chunks(ranges, self.extent.verified) {
                let max = HINT_MAX / cached.cache.chunk_size();
                let end = chunks.end.min(chunks.start.saturating_add(max));
                cached.fetcher.read_ahead(chunks.start..end);
            }
        }
    }

    /// Fetches neighbours of what was read: as [`prefetch`](Self::prefetch), after its ranges and those of
    /// [`prefetch_list`](Self::prefetch_list). No more than crosses the link in a second, and only while the link is idle if
    /// programs read something else.
    pub fn prefetch_near(&self, ranges: &[Range<u64>]) {
        if let Source::Remote(cached) = &self.source {
            cached
                .fetcher
                .prefetch_near(cached.chunks(ranges, self.extent.verified));
        }
    }

    /// Sets the callback after a request that a read waits for, in the thread that reads, with the position. Only the first
    /// one counts.
    pub fn on_miss(&self, callback: Arc<dyn Fn(u64) + Send + Sync>) {
        if let Source::Remote(cached) = &self.source {
            cached.fetcher.on_miss(callback);
        }
    }

    /// Lets reads of this thread fail for bytes that are not in the cache, instead of waiting for a server. The bytes are requested
    /// as [`prefetch_near`](Self::prefetch_near) does.
    pub fn never_wait_in_this_thread() {
        fetch::never_wait_in_this_thread();
    }

    /// Fetches everything else in the background, at most `rate` bytes per second. Returns at once.
    ///
    /// The fill takes the time in which the link is idle, and pauses while the server cannot be reached. It ends if the cache has no room for
    /// the image; [`failure`](Self::failure) states why.
    pub fn fill(&self, rate: Option<u64>) {
        if let Source::Remote(cached) = &self.source {
            fetch::fill(&cached.fetcher, rate);
        }
    }

    /// Requests a range for a reader. Returns true if a part of it was neither there nor requested.
    fn request_ahead(&self, cached: &Cached, offset: u64, len: u64) -> bool {
        let chunk = cached.cache.chunk_size();
        let end = offset
            .saturating_add(len)
            .min(self.extent.verified)
            .div_ceil(chunk);
        let first = offset / chunk;
        let end = end.min(first + HINT_MAX / chunk);
        first < end && cached.fetcher.read_ahead(first..end)
    }

    /// Failure that ended the fill before the image was complete.
    pub fn failure(&self) -> Option<Error> {
        match &self.source {
            Source::Local { .. } => None,
            Source::Remote(cached) => cached.fetcher.failure(),
        }
    }

    /// Counters of the image since it was opened. A local file is present from the start.
    pub fn stats(&self) -> Stats {
        let mut stats = Stats {
            size: self.extent.whole,
            present_bytes: self.extent.whole,
            ..Stats::default()
        };
        if let Source::Remote(cached) = &self.source {
            let counters = &cached.fetcher.counters;
            let [fetched, shared, requests, misses, waits, hedged, failed] = [
                &counters.fetched_bytes,
                &counters.shared_bytes,
                &counters.requests,
                &counters.misses,
                &counters.waits,
                &counters.hedged,
                &counters.failed,
            ]
            .map(|counter| counter.load(Ordering::Relaxed));
            stats = Stats {
                size: self.extent.whole,
                present_bytes: cached.cache.present_bytes().unwrap_or(0),
                fetched_bytes: fetched,
                shared_bytes: shared,
                pending_bytes: cached.fetcher.pending_bytes(),
                requests,
                demand_misses: misses,
                demand_waits: waits,
                hedged_requests: hedged,
                retries: cached.fetcher.object().retries(),
                failed_requests: failed,
            };
        }
        stats
    }

    /// Waits until every byte is present, the fill has failed, or the time is over. Returns true if every byte is
    /// present.
    pub fn wait_complete(&self, timeout: Duration) -> bool {
        let Source::Remote(cached) = &self.source else {
            return true;
        };
        let start = Instant::now();
        loop {
            if cached.cache.is_complete() {
                return true;
            }
            let left = timeout.saturating_sub(start.elapsed());
            if left.is_zero() || self.failure().is_some() {
                return false;
            }
            cached.fetcher.wait(left.min(POLL_INTERVAL));
        }
    }

    /// The complete image as one plain file in the cache. All of it is verified again: by the hash tree, the digest in
    /// the registry, or the checksums of chunks. Damaged chunks are fetched again.
    ///
    /// # Errors
    /// `Unavailable` if bytes are absent or cannot be fetched again, `Corrupt` if the file does not match the digest; it leaves the
    /// cache then.
    pub fn complete_file(&self) -> Result<CompleteFile> {
        let failed = |e: io::Error| Error::new(Kind::Unavailable, &self.place, e);
        let cached = match &self.source {
            Source::Remote(cached) => cached,
            Source::Local { path, .. } => {
                return Ok(CompleteFile {
                    file: File::open(path).map_err(failed)?,
                    path: path.clone(),
                    _hold: None,
                });
            }
        };
        let hold = cached.directory.hold(&cached.key).map_err(failed)?;
        if !cached.cache.is_complete() {
            let present = cached.cache.present_bytes().map_err(failed)?;
            let what = format_args!("{present} of {} bytes are in the cache", self.extent.whole);
            return Err(Error::new(Kind::Unavailable, &self.place, what));
        }
        let expected = self.digest();
        let mut hash = Sha256::new();
        for chunk in 0..cached.cache.len() {
            let bytes = cached.verified_chunk(chunk, &self.place)?;
            if expected.is_some() {
                hash.update(&bytes);
            }
        }
        let found = digest_of(hash);
        if expected.is_some_and(|expected| expected != found) {
            return Err(self.wrong_digest());
        }
        let path = cached.directory.image_path(&cached.key);
        let file = cached.directory.image_file(&cached.key);
        Ok(CompleteFile {
            file: file.map_err(failed)?,
            path,
            _hold: Some((hold, Arc::clone(&cached.cache))),
        })
    }
}

impl RemoteStore {
    /// Error for an object that does not match its digest, none of which stays in the cache.
    pub(crate) fn wrong_digest(&self) -> Error {
        let mut what = "the bytes do not match the digest of the blob in the manifest".to_owned();
        if let Source::Remote(cached) = &self.source {
            what += match cached.cache.forget_all() {
                Ok(()) => {
                    "; they were removed from the cache, so repeat the command to fetch them again"
                }
                Err(_) => "; remove the directory of the cache",
            };
        }
        Error::new(Kind::Corrupt, &self.place, what)
    }
}

impl Cached {
    fn is_right(&self, chunk: u64, bytes: &[u8]) -> bool {
        let verifier = self.verifier.as_ref();
        verifier.is_none_or(|verifier| {
            verifier
                .verify(chunk * self.cache.chunk_size(), bytes)
                .is_ok()
        })
    }

    /// Chunks of ranges of the image, whose first `size` bytes can be read.
    fn chunks(&self, ranges: &[Range<u64>], size: u64) -> impl Iterator<Item = Range<u64>> {
        let chunk = self.cache.chunk_size();
        let chunks = move |range: &Range<u64>| {
            range.start.min(size) / chunk..range.end.min(size).div_ceil(chunk)
        };
        ranges.iter().map(chunks)
    }

    /// Reads a part of the first chunk of those that a reader wants, from the cache or from the source.
    fn read(&self, needed: Range<u64>, skip: usize, buf: &mut [u8], place: &str) -> Result<Access> {
        let chunk = needed.start;
        for _ in 0..ATTEMPTS_MAX {
            let verify = |bytes: &[u8]| self.is_right(chunk, bytes);
            if self.cache.read(chunk, skip, buf, verify) {
                self.cache.note_read(chunk);
                return Ok(Access::default());
            }
            if let Some((bytes, has_missed)) = self.fetcher.fetch(needed.clone())? {
                // Fits: both are whole chunks, or the end of the image.
                buf.copy_from_slice(&bytes[skip..skip + buf.len()]);
                self.cache.note_read(chunk);
                return Ok(Access {
                    has_waited: true,
                    has_missed,
                });
            }
        }
        Err(self.unstable(chunk, place))
    }

    fn unstable(&self, chunk: u64, place: &str) -> Error {
        let at = chunk * self.cache.chunk_size();
        let what = format_args!("bytes from {at} on: the cache is damaged or changes all the time");
        Error::new(Kind::Unavailable, place, what)
    }

    /// Bytes of a chunk in the cache, after another look at its file.
    fn verified_chunk(&self, chunk: u64, place: &str) -> Result<Vec<u8>> {
        for _ in 0..ATTEMPTS_MAX {
            let read = self
                .cache
                .read_again(chunk, |bytes| self.is_right(chunk, bytes));
            if let Some(bytes) = read {
                return Ok(bytes);
            }
            self.fetcher.fetch(chunk..chunk + 1)?;
        }
        Err(self.unstable(chunk, place))
    }
}

/// Digest of all bytes, as registries write it.
pub(crate) fn digest_of(hash: Sha256) -> String {
    format!("sha256:{}", hex::encode(hash.finalize()))
}

impl Drop for RemoteStore {
    fn drop(&mut self) {
        match &self.source {
            Source::Remote(cached) if cached.is_of_this_process() => cached.fetcher.close(),
            // Connections and locks are those of the parent.
            Source::Remote(cached) => std::mem::forget(Arc::clone(cached)),
            Source::Local { .. } => {}
        }
    }
}

impl RemoteStore {
    /// Reads bytes before `end`.
    fn read_before(&self, end: u64, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let cached = match &self.source {
            Source::Local { file, .. } => return file.read_at(buf, offset),
            Source::Remote(cached) => cached,
        };
        if !cached.is_of_this_process() {
            let what = "was opened before a fork: open it again in this process";
            return Err(io::Error::other(format!("{}: {what}", self.place)));
        }
        let left = end.saturating_sub(offset);
        let len = buf.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let mut done = 0;
        let mut access = Access::default();
        let size = cached.cache.chunk_size();
        if len as u64 > READ_MAX {
            access.has_missed = self.request_ahead(cached, offset, len as u64);
            if access.has_missed {
                cached.fetcher.report_miss(offset);
            }
        }
        while done < len {
            let at = offset + done as u64;
            let (chunk, skip) = (at / size, (at % size) as usize); // fits: in a chunk
            let part = (len - done).min(size as usize - skip);
            let end = (at + READ_MAX.min((len - done) as u64)).div_ceil(size);
            let needed = chunk..end;
            let read = cached.read(needed, skip, &mut buf[done..done + part], &self.place)?;
            access.has_waited |= read.has_waited;
            access.has_missed |= read.has_missed;
            done += part;
        }
        let counters = &cached.fetcher.counters;
        let add = |counter: &AtomicU64, is: bool| counter.fetch_add(is.into(), Ordering::Relaxed);
        add(&counters.waits, access.has_waited);
        add(&counters.misses, access.has_missed);
        Ok(done)
    }
}

impl ReadAt for RemoteStore {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.read_before(self.extent.image, buf, offset)
    }

    fn size(&self) -> u64 {
        self.extent.image
    }

    fn done_with(&self, offset: u64, len: u64) {
        if let Source::Local { file, .. } = &self.source {
            file.done_with(offset, len);
        }
    }

    fn will_need(&self, offset: u64, len: u64) {
        match &self.source {
            Source::Local { file, .. } => file.will_need(offset, len),
            Source::Remote(cached) if cached.is_of_this_process() => {
                self.request_ahead(cached, offset, len);
            }
            Source::Remote(_) => {}
        }
    }
}
