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
pub struct LeftOut(Arc<Mutex<BTreeMap<Vec<u8>, String>>>);

impl LeftOut {
    /// Returns one line for each path, ascending: the path and the reason.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let paths = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let line = |(path, why): (&Vec<u8>, &String)| format!("{}: {why}", Quoted(path));
        paths.iter().map(line).collect()
    }

    /// Returns the number of paths.
    #[must_use]
    pub fn count(&self) -> usize {
        let paths = self.0.lock();
        paths.unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Adds a path, with the reason.
    pub fn add(&self, path: impl Into<Vec<u8>>, why: impl Display) {
        let mut paths = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        paths.entry(path.into()).or_insert_with(|| why.to_string());
    }

    /// Adds a path if `error` is one of the file, and not of the host as a whole. Returns whether it is.
    pub fn take(&self, path: impl Into<Vec<u8>>, what: impl Display, error: &io::Error) -> bool {
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
            // Damage and lost sectors, as file systems and disks name them, and files without their keys.
            Errno::UCLEAN,
            Errno::BADMSG,
            Errno::NODATA,
            Errno::REMOTEIO,
            Errno::TIMEDOUT,
            Errno::NOKEY,
        ];
        let number = error.raw_os_error();
        let is_of_file = of_file.iter().any(|e| Some(e.raw_os_error()) == number);
        if is_of_file {
            self.add(path, format_args!("{what}: {error}"));
        }
        is_of_file
    }

    /// True if the path was added.
    pub(crate) fn has(&self, path: &[u8]) -> bool {
        let paths = self.0.lock();
        paths
            .unwrap_or_else(PoisonError::into_inner)
            .contains_key(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b16_names_that_are_no_text_are_different_paths() {
        let left_out = LeftOut::default();
        left_out.add(*b"dir/a\xff", "unreadable");
        assert!(left_out.has(b"dir/a\xff") && !left_out.has(b"dir/a\xfe"));
        left_out.add(*b"dir/a\xfe", "unreadable");
        assert_eq!(
            left_out.lines(),
            [r#""dir/a\xfe": unreadable"#, r#""dir/a\xff": unreadable"#]
        );
    }
}
