//! Opening of deep paths: the cost of a walk is proportional to its directories, not to the lengths of their paths.

use crate::retry;
use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Longest path that is resolved at once. Unit: bytes. Paths in one system call have less than 4096.
const PART_MAX: usize = 1024;

/// Maximum number of directories that stay open.
const DIRECTORIES_MAX: usize = 32;

/// Opens paths of any length below a directory, by handles of directories on the way to the last one.
///
/// A path that is close to the last one, as in a walk, is resolved from the nearest of these directories.
#[derive(Default)]
pub struct PathOpener {
    /// Path of the last directory that stays open.
    path: Vec<u8>,
    /// Directories on the way, by the lengths of their paths, ascending.
    open: Vec<(usize, OwnedFd)>,
}

impl PathOpener {
    /// Opens `path` below `root`, which is the same in all calls. An empty path opens the root itself. `flags` apply to
    /// the last component; those before it are directories.
    ///
    /// # Errors
    ///
    /// Errors of `openat`. `NAMETOOLONG` for a component that no filesystem has.
    pub fn open(
        &mut self,
        root: BorrowedFd<'_>,
        path: &[u8],
        flags: OFlags,
    ) -> Result<OwnedFd, Errno> {
        let is_above = |len: usize| path.get(len) == Some(&b'/') && path[..len] == self.path[..len];
        while self.open.last().is_some_and(|(len, _)| !is_above(*len)) {
            self.open.pop();
        }
        let start = |open: &[(usize, OwnedFd)]| open.last().map_or(0, |(len, _)| len + 1);
        while path.len() - start(&self.open) > PART_MAX {
            let at = start(&self.open);
            // The middle of the rest: the next paths need it as well, and on the way back those before it.
            let middle = ((path.len() - at) / 2).min(PART_MAX);
            let slash = path[at..at + middle].iter().rposition(|b| *b == b'/');
            let end = at + slash.ok_or(Errno::NAMETOOLONG)?;
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let fd = self.open_below(root, &path[at..end], flags)?;
            // Up to `at` it is the same.
            self.path.truncate(at);
            let known = self.path.len();
            self.path.extend_from_slice(&path[known..end]);
            self.open.push((end, fd));
            self.close_some();
        }
        let rest = &path[start(&self.open)..];
        self.open_below(root, rest, flags)
    }

    fn open_below(
        &self,
        root: BorrowedFd<'_>,
        rest: &[u8],
        flags: OFlags,
    ) -> Result<OwnedFd, Errno> {
        let dir = self.open.last().map_or(root, |(_, fd)| fd.as_fd());
        let rest = if rest.is_empty() { b"." } else { rest };
        retry(|| openat(dir, rest, flags, Mode::empty()))
    }

    /// Closes every second directory if too many are open, except for the deepest ones.
    fn close_some(&mut self) {
        if self.open.len() <= DIRECTORIES_MAX {
            return;
        }
        let kept = self.open.len() - DIRECTORIES_MAX / 4;
        let mut n = 0;
        self.open.retain(|_| {
            n += 1;
            n > kept || n % 2 == 0
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, mkdirat};
    use std::fs::File;

    /// Makes a chain of directories below `root`, each with a file `f`. Returns their paths.
    fn chain(root: &OwnedFd, levels: usize, name: &str) -> Vec<Vec<u8>> {
        let mut at = root.try_clone().unwrap();
        let mut path = Vec::new();
        let mut all = Vec::new();
        for level in 0..levels {
            mkdirat(&at, name, Mode::RWXU).unwrap();
            at = openat(&at, name, OFlags::RDONLY, Mode::empty()).unwrap();
            let flags = OFlags::CREATE | OFlags::WRONLY;
            let file = openat(&at, "f", flags, Mode::RWXU).unwrap();
            std::io::Write::write_all(&mut File::from(file), level.to_string().as_bytes()).unwrap();
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(name.as_bytes());
            all.push(path.clone());
        }
        all
    }

    #[test]
    fn paths_are_opened_in_any_order() {
        let scratch = tempfile::tempdir().unwrap();
        let root = openat(CWD, scratch.path(), OFlags::RDONLY, Mode::empty()).unwrap();
        let name = "directory-with-a-long-name";
        let paths = chain(&root, 700, name);
        let mut opener = PathOpener::default();
        let down = 0..paths.len();
        let up = (0..paths.len()).rev();
        let jumps = (0..300).map(|n| n * 7919 % paths.len());
        for level in down.chain(up).chain(jumps) {
            let path = [&paths[level][..], b"/f"].concat();
            let file = opener.open(root.as_fd(), &path, OFlags::RDONLY).unwrap();
            let text = std::io::read_to_string(File::from(file)).unwrap();
            assert_eq!(text, level.to_string());
            assert!(opener.open.len() <= DIRECTORIES_MAX);
        }
        let missing = [&paths[600][..], b"/none"].concat();
        let error = opener.open(root.as_fd(), &missing, OFlags::RDONLY);
        assert_eq!(error.unwrap_err(), Errno::NOENT);
        assert!(opener.open(root.as_fd(), b"", OFlags::RDONLY).is_ok());
        drop(scratch);
    }

    /// Regression: each directory was resolved from the root, so that a walk was quadratic in the depth.
    #[test]
    fn a_walk_resolves_a_bounded_part_of_each_path() {
        let scratch = tempfile::tempdir().unwrap();
        let root = openat(CWD, scratch.path(), OFlags::RDONLY, Mode::empty()).unwrap();
        let paths = chain(&root, 700, "abcdefghijklmnopqrstuvwxyz");
        let mut opener = PathOpener::default();
        let mut resolved = 0;
        for path in paths.iter().chain(paths.iter().rev()) {
            opener.open(root.as_fd(), path, OFlags::PATH).unwrap();
            let nearest = opener.open.last().map_or(0, |(len, _)| *len);
            resolved += path.len() - nearest;
        }
        assert!(
            resolved <= 2 * paths.len() * (PART_MAX + 1),
            "{resolved} bytes"
        );
        drop(scratch);
    }
}
