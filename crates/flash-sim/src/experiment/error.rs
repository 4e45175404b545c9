//! Errors of an experiment.

use std::fmt;
use std::path::Path;

/// Reason why an experiment ends without an outcome.
#[derive(Debug)]
pub enum Error {
    /// Wrong arguments, or a definition that lacks a value.
    Usage(String),
    /// The file system of the machine failed: the attempted action and its error.
    Io(String, std::io::Error),
    /// A command of a simulated file system or device failed.
    Failed(String),
}

/// Result of a step of an experiment.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Returns an I/O error about a path.
    pub(super) fn io(action: &str, path: &Path, error: std::io::Error) -> Self {
        Error::Io(format!("{action} {}", path.display()), error)
    }
}

/// Returns the error of a failed step.
pub(super) fn failed(step: &str, reason: &dyn fmt::Display) -> Error {
    Error::Failed(format!("experiment: {step}: {reason}"))
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Usage(text) | Error::Failed(text) => f.write_str(text),
            Error::Io(action, error) => write!(f, "cannot {action}: {error}"),
        }
    }
}

impl std::error::Error for Error {}
