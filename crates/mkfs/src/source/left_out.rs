//! Files that a build leaves out because they cannot be read.

use super::error::Quoted;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Files and directories below source directories that cannot be read, have vanished, or have changed while they were
/// read. Clones share the list.
#[derive(Clone, Debug, Default)]
pub struct LeftOut(Arc<Mutex<List>>);

#[derive(Debug, Default)]
struct List {
    /// Reasons by path.
    paths: BTreeMap<Vec<u8>, String>,
    /// Longest list. `None`: no limit.
    max: Option<usize>,
    /// Number of paths that are not in the list.
    others: usize,
}

impl LeftOut {
    /// Makes a list of at most `max` paths. Others are counted. It does not serve to repeat a build.
    #[must_use]
    pub fn with_max(max: usize) -> Self {
        let max = Some(max);
        Self(Arc::new(Mutex::new(List {
            max,
            ..List::default()
        })))
    }

    fn list(&self) -> MutexGuard<'_, List> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns one line for each path of the list, ascending: the path and the reason.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let line = |(path, why): (&Vec<u8>, &String)| format!("{}: {why}", Quoted(path));
        self.list().paths.iter().map(line).collect()
    }

    /// Returns the number of paths, with those that are not in the list.
    #[must_use]
    pub fn count(&self) -> usize {
        let list = self.list();
        list.paths.len() + list.others
    }

    /// Adds a path, with the reason.
    pub fn add(&self, path: impl Into<Vec<u8>>, why: impl Display) {
        let (mut list, path) = (self.list(), path.into());
        if list.max.is_some_and(|max| list.paths.len() >= max) && !list.paths.contains_key(&path) {
            list.others += 1;
            return;
        }
        let new = list.paths.entry(path);
        new.or_insert_with(|| why.to_string());
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
        self.list().paths.contains_key(path)
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

    #[test]
    fn b25_a_list_with_a_limit_counts_the_others() {
        let left_out = LeftOut::with_max(2);
        for path in ["c", "a", "c", "b", "d"] {
            left_out.add(path, "unreadable");
        }
        assert_eq!(left_out.count(), 4);
        assert_eq!(
            left_out.lines(),
            [r#""a": unreadable"#, r#""c": unreadable"#]
        );
    }
}
