//! Errors of reading a disk.

use std::fmt;
use std::io;

/// Result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Reason why a disk cannot be read.
#[derive(Debug)]
pub enum Error {
    /// A partition table or a signature partition breaks a rule of its format.
    Corrupt(String),
    /// The disk has a partition table, but no root or /usr partition.
    NoRoot,
    /// Reading the disk failed.
    Io(io::Error),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Corrupt(what) => f.write_str(what),
            Self::NoRoot => f.write_str(
                "no partition of the GPT partition table has the type of a root or /usr partition",
            ),
            Self::Io(e) => e.fmt(f),
        }
    }
}

impl std::error::Error for Error {}

impl From<io::Error> for Error {
    fn from(e: io::Error) -> Self {
        Self::Io(e)
    }
}
