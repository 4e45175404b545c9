//! Errors of the lab and their exit codes.

use std::fmt;
use std::path::Path;

/// Error of a command, classified by exit code.
#[derive(Debug)]
pub enum Error {
    /// Wrong arguments or an invalid definition.
    Usage(String),
    /// An unreadable record: location and reason.
    Corrupt(String),
    /// An operation of the host failed: the attempted operation and its error.
    Io(String, std::io::Error),
    /// A command that the lab itself needs (mount, apt-get, dpkg) failed.
    Command(String),
    /// Interrupted by a signal.
    Stopped,
}

/// Result of an operation of the lab.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Adds the attempted operation and its path to an error of the host.
pub trait At<T> {
    /// Returns an I/O error about a path in place of an error.
    fn at(self, what: &str, path: &Path) -> Result<T>;
}

impl<T, E: Into<std::io::Error>> At<T> for Result<T, E> {
    fn at(self, what: &str, path: &Path) -> Result<T> {
        self.map_err(|e| Error::io(what, path, e.into()))
    }
}

impl Error {
    /// Returns an I/O error about a path.
    pub fn io(what: &str, path: &Path, error: std::io::Error) -> Self {
        Error::Io(format!("{what} {}", path.display()), error)
    }

    /// Returns the exit code, a stable interface for scripts: 2 wrong arguments, 3 corrupt record,
    /// 5 host failure, 130 interrupted by a signal.
    pub fn exit_code(&self) -> u8 {
        match self {
            Error::Usage(_) => 2,
            Error::Corrupt(_) => 3,
            Error::Io(..) | Error::Command(_) => 5,
            Error::Stopped => 130,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Usage(text) | Error::Command(text) => f.write_str(text),
            Error::Corrupt(text) => write!(f, "corrupt record: {text}"),
            Error::Stopped => f.write_str("stopped"),
            Error::Io(what, error) => write!(f, "cannot {what}: {error}"),
        }
    }
}

impl std::error::Error for Error {}

impl From<tuff_flash_sim::experiment::error::Error> for Error {
    fn from(error: tuff_flash_sim::experiment::error::Error) -> Self {
        use tuff_flash_sim::experiment::error::Error as Experiment;
        match error {
            Experiment::Usage(text) => Error::Usage(text),
            Experiment::Io(what, error) => Error::Io(what, error),
            Experiment::Failed(text) => Error::Command(text),
        }
    }
}
