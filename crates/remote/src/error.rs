//! Errors of remote images: a kind, the image without credentials, and one sentence.

use std::fmt;
use std::io;
use tuff_store::StoreError;

/// Result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Kind of a failure, which decides the exit code of the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The URL or an option makes no sense.
    Usage,
    /// The server, the network or the cache directory failed, or access was refused.
    Unavailable,
    /// The object was replaced or removed since it was opened.
    Changed,
    /// The server or the object has a form that cannot be read in ranges.
    Unsupported,
    /// Bytes of the object do not match the root hash or their digest.
    Corrupt,
    /// The object states more than this program accepts.
    Limit,
    /// No signature by the trusted certificate comes with the image.
    Untrusted,
}

/// Failure of an operation on a remote image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    kind: Kind,
    place: String,
    what: String,
    is_missing: bool,
    is_outage: bool,
    is_refused: bool,
}

impl Error {
    /// Creates an error about `place`, which must not contain credentials.
    pub(crate) fn new(kind: Kind, place: impl fmt::Display, what: impl fmt::Display) -> Self {
        Self {
            kind,
            place: place.to_string(),
            what: what.to_string(),
            is_missing: false,
            is_outage: false,
            is_refused: false,
        }
    }

    /// Creates an error about an object that does not exist.
    pub(crate) fn missing(place: impl fmt::Display, what: impl fmt::Display) -> Self {
        Self {
            is_missing: true,
            ..Self::new(Kind::Unavailable, place, what)
        }
    }

    /// The same error, of a server that cannot be reached or fails.
    pub(crate) fn outage(self) -> Self {
        Self {
            is_outage: true,
            ..self
        }
    }

    /// True if the server cannot be reached or fails: it has refused nothing.
    pub(crate) fn is_outage(&self) -> bool {
        self.is_outage
    }

    /// The same error, of a server that wants fewer requests.
    pub(crate) fn refused(self) -> Self {
        Self {
            is_refused: true,
            ..self
        }
    }

    /// True if the server wants fewer requests.
    pub(crate) fn is_refused(&self) -> bool {
        self.is_refused
    }

    /// Creates the error of a failed read of `place`.
    pub(crate) fn read(place: impl fmt::Display, e: &io::Error) -> Self {
        let inner = e.get_ref();
        if let Some(e) = inner.and_then(|e| e.downcast_ref::<StoreError>()) {
            return Self::new(Kind::Corrupt, &e.store, &e.what);
        }
        let known = inner.and_then(|e| e.downcast_ref::<Self>()).cloned();
        known.unwrap_or_else(|| Self::new(Kind::Unavailable, place, e))
    }

    /// True if the object does not exist, or is hidden from those without access.
    pub(crate) fn is_missing(&self) -> bool {
        self.is_missing
    }

    /// Kind of the failure.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// URL of the image without credentials, or the path in the cache.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// Description without the place.
    pub fn what(&self) -> &str {
        &self.what
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.what)
    }
}

impl std::error::Error for Error {}

impl From<Error> for io::Error {
    fn from(e: Error) -> Self {
        let kind = match e.kind {
            Kind::Usage => io::ErrorKind::InvalidInput,
            Kind::Corrupt => io::ErrorKind::InvalidData,
            Kind::Unsupported => io::ErrorKind::Unsupported,
            Kind::Untrusted => io::ErrorKind::PermissionDenied,
            Kind::Limit => io::ErrorKind::FileTooLarge,
            Kind::Unavailable | Kind::Changed => io::ErrorKind::Other,
        };
        match e.kind {
            Kind::Corrupt => Self::new(
                kind,
                StoreError {
                    store: e.place,
                    what: e.what,
                },
            ),
            _ => Self::new(kind, e),
        }
    }
}
