//! Layer that is read from its source, or from the plain file once that is complete.
//!
//! A layer is named by its digest, and engines use it for every image that names it. Parts of an incomplete layer are given
//! out only if a hash tree or chunk index of its manifest verifies them. A layer without one is read when all of it is there
//! and has the digest.

use super::digest::{WRONG_DIGEST, digest};
use crate::neighbours::is_finder;
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};
use tuff_open::RemoteImage;
use tuff_remote::{CompleteFile, Error, Kind, Location, Options, RemoteStore};
use tuff_store::{FileStore, ReadAt};

/// Interval of checks whether a layer is complete.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Layer and position of bytes that had to be fetched.
pub(crate) type LayerMiss = (Weak<Layer>, u64);

/// Sender of layers and positions.
pub(crate) type MissSender = SyncSender<LayerMiss>;

/// Layer of a remote image. Its source is opened by the first read. Several images may have it: where the login of one is refused,
/// it is read from another one.
pub struct Layer {
    /// SHA-256 by which engines name the layer. 64 hexadecimal digits.
    pub diff_id: String,
    /// Size of the layer. Unit: bytes.
    pub size: u64,
    /// Description of the hash tree for engines: JSON with its root hash and its position.
    pub verity: Option<String>,
    /// Places that have the layer, of which the first one is read. Never empty.
    origins: Mutex<VecDeque<Origin>>,
    options: Options,
    /// Callback after a request that a read waits for, with the position.
    on_miss: OnceLock<Arc<dyn Fn(u64) + Send + Sync>>,
    state: Mutex<State>,
    /// Whole layer in the cache, which was compared with its name. Locked while it is fetched and compared.
    whole: Mutex<Option<Whole>>,
}

/// Place that has a layer: an image in a registry, with a login of its own, or an object.
struct Origin {
    location: Location,
    /// Image that the layer is of.
    image: Location,
}

/// Whole layer, open for reading.
struct Whole {
    file: Arc<FileStore>,
    /// Protection against eviction.
    _held: CompleteFile,
}

#[derive(Default)]
struct State {
    source: Source,
    /// Time and error of the last attempt to open the source.
    failure: Option<(Instant, Error)>,
    /// True if the layer was read.
    was_read: bool,
    /// True if the content was found to be another one than the name says. It is not read again.
    is_wrong: bool,
}

/// Source of the bytes of a layer.
#[derive(Clone, Default)]
enum Source {
    #[default]
    Closed,
    Remote(Arc<RemoteStore>),
    File(Arc<FileStore>),
}

impl Layer {
    /// Creates a layer whose source is not opened.
    pub(crate) fn new(
        diff_id: String,
        size: u64,
        verity: Option<String>,
        (location, image): (Location, Location),
        options: Options,
    ) -> Self {
        Self {
            diff_id,
            size,
            verity,
            origins: Mutex::new(VecDeque::from([Origin { location, image }])),
            options,
            on_miss: OnceLock::new(),
            state: Mutex::default(),
            whole: Mutex::default(),
        }
    }

    fn origins(&self) -> MutexGuard<'_, VecDeque<Origin>> {
        self.origins.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn location(&self) -> Location {
        self.origins()[0].location.clone()
    }

    /// Adds the places of the same layer of another image, for reads that the first one refuses. It must be verified by the same
    /// root hash: another one would say something else about the bytes.
    pub(super) fn share(&self, other: &Self) {
        let has_same_root = self.verity.is_some() && self.verity == other.verity;
        if has_same_root && self.size == other.size {
            let mut added = std::mem::take(&mut *other.origins());
            self.origins().append(&mut added);
        }
    }

    /// Reads from the next place, if the source in use is still `failed`, or if no source is open and `failed` is `None`.
    pub(super) fn leave(&self, failed: Option<&Arc<RemoteStore>>) {
        let mut state = self.state();
        let is_in_use = match (&state.source, failed) {
            (Source::Remote(store), Some(failed)) => Arc::ptr_eq(store, failed),
            (Source::Closed, None) => true,
            _ => false,
        };
        let mut origins = self.origins();
        if is_in_use && origins.len() > 1 {
            state.source = Source::Closed;
            origins.rotate_left(1);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens the remote source, unless it is open.
    ///
    /// Callers that waited for an attempt which failed share its error, so that none of them waits twice.
    pub(crate) fn open(&self) -> Result<Arc<RemoteStore>, Error> {
        let called_at = Instant::now();
        let mut state = self.state();
        if let Source::Remote(store) = &state.source {
            return Ok(Arc::clone(store));
        }
        match &state.failure {
            Some((at, e)) if *at >= called_at => return Err(e.clone()),
            _ => {}
        }
        match tuff_remote::open(&self.location(), &self.options) {
            Ok(store) => {
                if let Some(on_miss) = self.on_miss.get() {
                    store.on_miss(Arc::clone(on_miss));
                }
                if !matches!(state.source, Source::File(_)) {
                    state.source = Source::Remote(Arc::clone(&store));
                }
                Ok(store)
            }
            Err(e) => {
                state.failure = Some((Instant::now(), e.clone()));
                Err(e)
            }
        }
    }

    /// Sends the places of reads that wait for requests, of the next time that the source is opened.
    pub(crate) fn follow(self: &Arc<Self>, misses: &MissSender) {
        let (layer, misses) = (Arc::downgrade(self), misses.clone());
        let _ = self.on_miss.set(Arc::new(move |pos| {
            // A full queue drops places.
            if !is_finder() {
                let _ = misses.try_send((Weak::clone(&layer), pos));
            }
        }));
    }

    /// The remote source, if it is fetched in parts.
    pub(super) fn parts(&self) -> Option<Arc<RemoteImage>> {
        let store = (!self.is_complete()).then(|| self.open().ok()).flatten()?;
        let (image, options) = (self.origins()[0].image.clone(), self.options.clone());
        let of_store = || Arc::new(RemoteImage::of_store(store.clone(), image, options));
        store.verifies_parts().then(of_store)
    }

    /// True if the layer was read.
    pub(crate) fn was_read(&self) -> bool {
        self.state().was_read
    }

    /// True if the layer is read from a plain file.
    pub(crate) fn is_complete(&self) -> bool {
        matches!(self.state().source, Source::File(_))
    }

    /// Makes a plain file the source of the layer.
    pub(crate) fn read_from(&self, file: FileStore) {
        self.state().source = Source::File(Arc::new(file));
    }

    /// Makes the remote source that of the layer again.
    pub(crate) fn forget_file(&self) {
        self.state().source = Source::Closed;
    }

    /// Lets every read fail: the source has other content than the name says.
    pub(crate) fn withdraw(&self) {
        self.state().is_wrong = true;
    }

    fn source(&self) -> io::Result<Source> {
        let mut state = self.state();
        state.was_read = true;
        match state.is_wrong {
            true => Err(wrong()),
            false => Ok(state.source.clone()),
        }
    }

    /// Reads from the source, or from the whole layer if the source cannot verify its parts.
    fn read_from_source(
        &self,
        source: &Arc<RemoteStore>,
        buf: &mut [u8],
        offset: u64,
    ) -> io::Result<usize> {
        match source.verifies_parts() {
            true => source.read_with_tree_at(buf, offset),
            false => self.whole(source)?.read_at(buf, offset),
        }
    }

    /// Fetches the whole layer and compares it with its name, unless that has been done.
    fn whole(&self, source: &Arc<RemoteStore>) -> io::Result<Arc<FileStore>> {
        let mut whole = self.whole.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(whole) = &*whole {
            return Ok(Arc::clone(&whole.file));
        }
        // Those that waited for a comparison share its result.
        self.source()?;
        source.fill(None);
        while !source.wait_complete(CHECK_INTERVAL) {
            if let Some(e) = source.failure() {
                return Err(e.into());
            }
        }
        let held = source.complete_file()?;
        if digest(held.file(), &|_| {})? != self.diff_id {
            self.withdraw();
            return Err(wrong());
        }
        let file = Arc::new(FileStore::new(held.file().try_clone()?)?);
        let shared = Arc::clone(&file);
        *whole = Some(Whole { file, _held: held });
        Ok(shared)
    }
}

fn wrong() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, WRONG_DIGEST)
}

/// True if another place may have what a read did not get.
fn is_unavailable(e: &io::Error) -> bool {
    let e = e.get_ref().and_then(|e| e.downcast_ref::<Error>());
    e.is_some_and(|e| matches!(e.kind(), Kind::Unavailable | Kind::Changed))
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.location().fmt(f)
    }
}

impl ReadAt for Layer {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        // Each place is tried once.
        let mut left = self.origins().len();
        loop {
            let (source, result) = match self.source()? {
                Source::File(file) => return file.read_at(buf, offset),
                Source::Remote(store) => {
                    let result = self.read_from_source(&store, buf, offset);
                    (Some(store), result)
                }
                Source::Closed => match self.open() {
                    Ok(store) => {
                        let result = self.read_from_source(&store, buf, offset);
                        (Some(store), result)
                    }
                    Err(e) => (None, Err(e.into())),
                },
            };
            left = left.saturating_sub(1);
            match result {
                // A finder reads only what is in the cache.
                Err(e) if left > 0 && !is_finder() && is_unavailable(&e) => {
                    self.leave(source.as_ref());
                }
                result => return result,
            }
        }
    }

    fn size(&self) -> u64 {
        self.size
    }
}
