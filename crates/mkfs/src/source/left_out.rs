//! Files that a build leaves out because they cannot be read.

use super::error::Quoted;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

/// Files and directories below source directories that cannot be read, have vanished, or have changed while they were
/// read. Clones share the list.
#[derive(Clone, Debug, Default)]
pub struct LeftOut(Arc<Mutex<BTreeMap<String, String>>>);

impl LeftOut {
    /// Returns one line for each path, ascending: the path and the reason.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let paths = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let line = |(path, why): (&String, &String)| format!("{}: {why}", Quoted(path.as_bytes()));
        paths.iter().map(line).collect()
    }

    /// Returns the number of paths.
    #[must_use]
    pub fn count(&self) -> usize {
        let paths = self.0.lock();
        paths.unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Adds a path that the caller leaves out.
    pub fn add(&self, path: &[u8], why: impl Display) {
        self.add_text(String::from_utf8_lossy(path).into_owned(), why);
    }

    /// Adds a path in the form of messages.
    pub(crate) fn add_text(&self, path: String, why: impl Display) {
        let mut paths = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        paths.entry(path).or_insert_with(|| why.to_string());
    }

    /// Adds a path if `error` is one of the file, and not of the host as a whole. Returns whether it is.
    pub(crate) fn take(&self, path: String, what: impl Display, error: &io::Error) -> bool {
        let of_file = [
            Errno::ACCESS,
            Errno::PERM,
            Errno::NOENT,
            Errno::NOTDIR,
            Errno::LOOP,
            Errno::NXIO,
            Errno::NODEV,
            Errno::STALE,
            Errno::IO,
        ];
        let number = error.raw_os_error();
        let is_of_file = of_file.iter().any(|e| Some(e.raw_os_error()) == number);
        if is_of_file {
            self.add_text(path, format_args!("{what}: {error}"));
        }
        is_of_file
    }

    /// True if the path was added.
    pub(crate) fn has(&self, path: &str) -> bool {
        let paths = self.0.lock();
        paths
            .unwrap_or_else(PoisonError::into_inner)
            .contains_key(path)
    }
}
