//! State shared by the threads of an extraction.

use super::report::{Options, Problem, Totals};
use super::target;
use crate::read::Image;
use crate::walk::shortened;
use crate::{Error, Place, Result};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

pub(super) fn is_interrupted(error: &Error) -> bool {
    matches!(error, Error::Io(_, e) if e.kind() == std::io::ErrorKind::Interrupted)
}

/// Image, target, options and counters shared by all threads of an extraction.
pub(super) struct Shared<'a> {
    pub(super) image: &'a Image,
    pub(super) options: &'a Options,
    pub(super) owners: bool,
    pub(super) root: target::Root,
    /// Maximum number of files that stay open between their pieces.
    pub(super) open_max: u64,
    pub(super) open: AtomicU64,
    /// Set by the first error that ends the extraction.
    pub(super) stop: AtomicBool,
    pub(super) error: Mutex<Option<Error>>,
    pub(super) problems: Mutex<Vec<Problem>>,
    pub(super) dropped: AtomicU64,
    pub(super) totals: AtomicTotals,
}

#[derive(Default)]
pub(super) struct AtomicTotals {
    pub(super) files: AtomicU64,
    pub(super) kept: AtomicU64,
    pub(super) directories: AtomicU64,
    pub(super) symlinks: AtomicU64,
    pub(super) specials: AtomicU64,
    pub(super) links: AtomicU64,
    pub(super) bytes: AtomicU64,
    pub(super) clusters: AtomicU64,
    pub(super) deleted: AtomicU64,
}

impl AtomicTotals {
    pub(super) fn get(&self) -> Totals {
        Totals {
            files: self.files.load(Relaxed),
            kept: self.kept.load(Relaxed),
            directories: self.directories.load(Relaxed),
            symlinks: self.symlinks.load(Relaxed),
            specials: self.specials.load(Relaxed),
            links: self.links.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
            clusters: self.clusters.load(Relaxed),
            deleted: self.deleted.load(Relaxed),
        }
    }
}

impl Shared<'_> {
    /// Records a problem for the report.
    pub(super) fn problem(&self, path: Vec<u8>, what: impl ToString) {
        let mut problems = self.problems.lock().unwrap_or_else(PoisonError::into_inner);
        if problems.len() >= self.options.problems {
            self.dropped.fetch_add(1, Relaxed);
        } else {
            let what = what.to_string();
            problems.push(Problem { path, what });
        }
    }

    /// Handles an error that omits an entry: returns it, or records it as a problem with [`Options::keep_going`].
    pub(super) fn fail(&self, path: Vec<u8>, error: Error) -> Result<()> {
        // A stop ends the whole extraction. It is not a problem of this file.
        if self.stopped() && is_interrupted(&error) {
            return Err(error);
        }
        if !self.ends(&error) {
            self.problem(path, &error);
            return Ok(());
        }
        let path = shortened(&path);
        let shown = String::from_utf8_lossy(&path);
        Err(if shown.is_empty() {
            error
        } else {
            error.within(Place::path(shown))
        })
    }

    /// Like [`fail`](Self::fail), but for a worker: keeps the first error for the caller and stops all other threads.
    pub(super) fn fail_later(&self, path: Vec<u8>, error: Error) {
        if let Err(error) = self.fail(path, error) {
            let mut first = self.error.lock().unwrap_or_else(PoisonError::into_inner);
            first.get_or_insert(error);
            self.stop.store(true, Relaxed);
        }
    }

    /// Returns true if `error` ends the extraction.
    pub(super) fn ends(&self, error: &Error) -> bool {
        !self.options.keep_going || matches!(error, Error::Limit(_))
    }

    pub(super) fn stopped(&self) -> bool {
        self.stop.load(Relaxed) || self.options.stop.load(Relaxed)
    }

    /// Returns the error for an incomplete tree when no worker recorded one.
    pub(super) fn interrupted(&self) -> Error {
        let totals = self.totals.get();
        Error::io(
            "",
            format_args!(
                "stopped: {} files are complete, incomplete files were removed",
                totals.files
            ),
            std::io::ErrorKind::Interrupted.into(),
        )
    }
}
