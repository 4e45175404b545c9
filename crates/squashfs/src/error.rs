//! Errors of reading an image.

use std::fmt::{self, Display};
use std::io;

/// Result of reading an image.
pub type Result<T> = std::result::Result<T, Error>;

/// Error of reading an image. Messages start in lower case and name the byte in the image, where there is one.
#[derive(Debug)]
pub enum Error {
    /// The image violates a rule of its format.
    Corrupt(String),
    /// The image has another version, or a compressor that this version does not decode.
    Unsupported(String),
    /// The image needs more than a named limit.
    Limit(String),
    /// The image could not be read.
    Io(io::Error),
}

impl Error {
    /// Returns the error for a structure that begins at byte `at`.
    pub(crate) fn corrupt(at: u64, what: impl Display) -> Self {
        Self::Corrupt(format!("byte {at}: {what}"))
    }
}

impl Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Corrupt(what) | Self::Unsupported(what) | Self::Limit(what) => f.write_str(what),
            Self::Io(e) => e.fmt(f),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io(e) => Some(e),
            _ => None,
        }
    }
}
