//! Tar streams from any reader as sources.

use std::fmt;
use std::io::Read;
use std::sync::{Arc, Mutex, PoisonError};

/// Tar, plain or compressed, or cpio archives, from a reader. It can be read by one build only.
#[derive(Clone)]
pub struct TarStream {
    name: String,
    reader: Arc<Mutex<Option<Reader>>>,
}

/// Reader of a [`TarStream`].
pub(crate) type Reader = Box<dyn Read + Send>;

impl TarStream {
    /// Creates a source that reads a tar from `reader`. `name` names it in messages.
    pub fn new(name: impl Into<String>, reader: impl Read + Send + 'static) -> Self {
        Self {
            name: name.into(),
            reader: Arc::new(Mutex::new(Some(Box::new(reader)))),
        }
    }

    /// Returns the name that messages use.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the reader. `None` if a build has taken it already.
    pub(crate) fn take(&self) -> Option<Reader> {
        let mut reader = self.reader.lock().unwrap_or_else(PoisonError::into_inner);
        reader.take()
    }
}

impl fmt::Debug for TarStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TarStream").field(&self.name).finish()
    }
}
