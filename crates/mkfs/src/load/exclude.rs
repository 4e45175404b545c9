//! Entries that the options exclude.

use crate::options::SourceOptions;
use crate::tree::paths::common_dir;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// Excluded paths, and the last directory that was found not to be excluded.
pub(super) struct Exclude<'a> {
    options: &'a SourceOptions,
    kept_dir: Vec<u8>,
}

impl<'a> Exclude<'a> {
    pub(super) fn new(options: &'a SourceOptions) -> Self {
        Self {
            options,
            kept_dir: Vec::new(),
        }
    }

    /// Returns true if a path is excluded by itself.
    pub(super) fn matches(&self, path: &[u8]) -> bool {
        let also = &self.options.exclude_also;
        self.options.exclude.is_match(OsStr::from_bytes(path))
            || also.iter().any(|paths| paths.is_match(path))
    }

    /// Returns true if a path, or a directory above it, is excluded.
    pub(super) fn is_left_out(&mut self, path: &[u8]) -> bool {
        if self.options.exclude.is_empty() && self.options.exclude_also.is_empty() {
            return false;
        }
        let Some(end) = path.iter().rposition(|b| *b == b'/') else {
            return self.matches(path);
        };
        let dir = &path[..end];
        // The ancestors of a kept directory were kept, too.
        let known = common_dir(&self.kept_dir, dir);
        let mut ends = (known..dir.len()).filter(|at| dir[*at] == b'/');
        if known < dir.len() {
            if ends.any(|end| end > known && self.matches(&dir[..end])) || self.matches(dir) {
                return true;
            }
            self.kept_dir.clear();
            self.kept_dir.extend_from_slice(dir);
        }
        self.matches(path)
    }
}
