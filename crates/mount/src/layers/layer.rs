//! Layer that is read from its source, or from the plain file once that is complete.
//!
//! A layer is named by its digest, and engines use it for every image that names it. Parts of an incomplete layer are given
//! out only if a hash tree or chunk index of its manifest verifies them. A layer without one is read when all of it is there
//! and has the digest.

use super::digest::{WRONG_DIGEST, digest};
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tuff_remote::{CompleteFile, Error, Location, Options, RemoteStore};
use tuff_store::{FileStore, ReadAt};

/// Interval of checks whether a layer is complete.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Layer of a remote image. Its source is opened by the first read.
pub struct Layer {
    /// SHA-256 by which engines name the layer. 64 hexadecimal digits.
    pub diff_id: String,
    /// Size of the layer. Unit: bytes.
    pub size: u64,
    /// Description of the hash tree for engines: JSON with its root hash and its position.
    pub verity: Option<String>,
    location: Location,
    options: Options,
    state: Mutex<State>,
    /// Whole layer in the cache, which was compared with its name. Locked while it is fetched and compared.
    whole: Mutex<Option<Whole>>,
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
        (location, options): (Location, Options),
    ) -> Self {
        Self {
            diff_id,
            size,
            verity,
            location,
            options,
            state: Mutex::default(),
            whole: Mutex::default(),
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
        match tuff_remote::open(&self.location, &self.options) {
            Ok(store) => {
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

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.location.fmt(f)
    }
}

impl ReadAt for Layer {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        match self.source()? {
            Source::File(file) => file.read_at(buf, offset),
            Source::Remote(store) => self.read_from_source(&store, buf, offset),
            Source::Closed => self.read_from_source(&self.open()?, buf, offset),
        }
    }

    fn size(&self) -> u64 {
        self.size
    }
}
