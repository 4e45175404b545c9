//! Layer that is read from its source, or from the plain file once that is complete.

use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tuff_remote::{Error, Location, Options, RemoteStore};
use tuff_store::{FileStore, ReadAt};

/// Layer of a remote image. Its source is opened by the first read.
pub(super) struct Layer {
    /// SHA-256 by which engines name the layer. 64 hexadecimal digits.
    pub(super) diff_id: String,
    /// Size of the layer. Unit: bytes.
    pub(super) size: u64,
    /// Description of the hash tree for engines: JSON with its root hash and its position.
    pub(super) verity: Option<String>,
    location: Location,
    options: Options,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    source: Source,
    /// Time and error of the last attempt to open the source.
    failure: Option<(Instant, Error)>,
    /// True if the layer was read.
    was_read: bool,
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
    pub(super) fn new(
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
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens the remote source, unless it is open.
    ///
    /// Callers that waited for an attempt which failed share its error, so that none of them waits twice.
    pub(super) fn open(&self) -> Result<Arc<RemoteStore>, Error> {
        let asked = Instant::now();
        let mut state = self.state();
        if let Source::Remote(store) = &state.source {
            return Ok(Arc::clone(store));
        }
        match &state.failure {
            Some((at, e)) if *at >= asked => return Err(e.clone()),
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
    pub(super) fn was_read(&self) -> bool {
        self.state().was_read
    }

    /// True if the layer is read from a plain file.
    pub(super) fn is_complete(&self) -> bool {
        matches!(self.state().source, Source::File(_))
    }

    /// Makes a plain file the source of the layer.
    pub(super) fn read_from(&self, file: FileStore) {
        self.state().source = Source::File(Arc::new(file));
    }

    /// Makes the remote source that of the layer again.
    pub(super) fn forget_file(&self) {
        self.state().source = Source::Closed;
    }

    fn source(&self) -> Source {
        let mut state = self.state();
        state.was_read = true;
        state.source.clone()
    }
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.location.fmt(f)
    }
}

impl ReadAt for Layer {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        match self.source() {
            Source::File(file) => file.read_at(buf, offset),
            Source::Remote(store) => store.read_at(buf, offset),
            Source::Closed => self.open()?.read_at(buf, offset),
        }
    }

    fn size(&self) -> u64 {
        self.size
    }
}
