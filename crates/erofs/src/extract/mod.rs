//! Extracting images: each cluster decoded once, written wherever it belongs, on all cores.
//!
//! ```text
//!  walk     one thread: directories are made, files become pieces          walk.rs filter.rs
//!    └► batch    pieces sorted by where their cluster lies                 batch.rs
//!         └► workers   decode a cluster, copy its pieces, write            write.rs
//!              └► the last piece of a file: owner, mode, attributes, times attributes.rs
//!  after all: hard links, then directories from the leaves up              walk.rs
//! ```
//!
//! Invariants:
//!
//! * Nothing outside the target is touched, whatever the image says and whoever plants symlinks: every name is checked,
//!   and every step is taken from the handle of a directory, following nothing (target.rs).
//! * Nothing that exists is written to. With [`Options::overwrite`] it is unlinked first, with [`Options::update`] not what is
//!   complete.
//! * However an extraction ends, no file is left in part under its name: an error or a stop removes what is not
//!   complete. Only damage that [`Options::keep_going`] names leaves files with gaps. A process that is killed leaves files in
//!   part under their names only if they are small and right in a directory that was there before (target.rs).
//! * Memory does not grow with the tree: a batch is bounded, and so are open files.

mod attributes;
mod batch;
mod filter;
mod target;
mod walk;
mod write;

use crate::open_files;
use crate::read::Image;
use crate::walk::shortened;
use crate::{Error, Result};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

/// What to extract, and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// Only these paths, with all below them. Empty, the default: everything.
    pub paths: Vec<Vec<u8>>,
    /// Only what matches one of these globs, with all below it. Empty, the default: everything.
    pub include: Vec<String>,
    /// Nothing that matches one of these globs, and nothing below it.
    pub exclude: Vec<String>,
    /// Directory names that are taken off the front of every path. What has no more is left out. Default: 0.
    pub strip: usize,
    /// Replace files that exist, and go on in directories that do. Default: no.
    pub overwrite: bool,
    /// With that, leave files alone that have length, time, mode, owner and attributes of the image's: what an extraction that
    /// was stopped has completed, since times come last. Contents are not compared. Default: no.
    pub update: bool,
    /// Give files their owners. Default: only as root.
    pub owners: Option<bool>,
    /// Set extended attributes. Default: yes.
    pub xattrs: bool,
    /// Set times. Default: yes.
    pub times: bool,
    /// Go on after damage or failure, and report it, instead of ending there. Default: no.
    pub keep_going: bool,
    /// Threads. 0, the default: one for each core.
    pub threads: usize,
    /// Most names that may be made. Default: no limit but [`Limits::names_per_byte`](crate::read::Limits::names_per_byte).
    pub files: u64,
    /// Most bytes that may be written, holes not counted. Default: no limit but
    /// [`Limits::content_per_byte`](crate::read::Limits::content_per_byte).
    pub bytes: u64,
    /// Problems that are kept; further ones are only counted. Default: 1000.
    pub problems: usize,
    /// Set from outside, it ends the extraction soon, with an error of kind `Interrupted`. Default: nobody does.
    pub stop: Arc<AtomicBool>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            paths: Vec::new(),
            include: Vec::new(),
            exclude: Vec::new(),
            strip: 0,
            overwrite: false,
            update: false,
            owners: None,
            xattrs: true,
            times: true,
            keep_going: false,
            threads: 0,
            files: u64::MAX,
            bytes: u64::MAX,
            problems: 1000,
            stop: Arc::default(),
        }
    }
}

/// What was made so far, or in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Totals {
    /// Regular files.
    pub files: u64,
    /// Files among them that were there, with [`Options::update`].
    pub kept: u64,
    /// Directories.
    pub directories: u64,
    /// Symlinks.
    pub symlinks: u64,
    /// Devices, fifos and sockets.
    pub specials: u64,
    /// Further names of files.
    pub links: u64,
    /// Bytes written. Unit: bytes.
    pub bytes: u64,
    /// Clusters decoded.
    pub clusters: u64,
}

/// Something that is not as in the image.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// Path below the target.
    pub path: Vec<u8>,
    /// What could not be restored, and why.
    pub what: String,
}

/// What an extraction did.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// What was made.
    pub totals: Totals,
    /// What could not be restored, by path.
    pub problems: Vec<Problem>,
    /// Problems beyond [`Options::problems`], which are not kept.
    pub dropped: u64,
}

/// Extracts the tree of an image into the directory `target`, which is made if there is none.
///
/// `progress` is called now and then by the calling thread, and once at the end.
///
/// # Errors
/// The first damage, limit or failure that leaves a name or bytes out; with [`Options::keep_going`] those are
/// problems in the report. Attributes that the target does not take are always problems, never errors. `Usage` if a
/// path is not in the image, a glob is broken, or a file exists already. `Io` of kind `Interrupted` if it was stopped.
/// After an error, files that are complete stay, with their attributes; directories stay, perhaps without theirs; files
/// that are not complete are removed.
pub fn extract(
    image: &Image,
    target: &Path,
    options: &Options,
    mut progress: impl FnMut(&Totals),
) -> Result<Report> {
    if options.update && !(options.overwrite && options.times) {
        return Err(Error::usage(
            "an update overwrites what is not complete, and knows that by its time",
        ));
    }
    let filter = filter::Filter::new(image, options)?;
    let root = target::open_target(target, options.overwrite)?;
    let shared = Shared {
        image,
        options,
        owners: options
            .owners
            .unwrap_or_else(|| rustix::process::geteuid().is_root()),
        root,
        open_max: open_files::half(512).max(16),
        open: AtomicU64::new(0),
        stop: AtomicBool::new(false),
        error: Mutex::new(None),
        problems: Mutex::new(Vec::new()),
        dropped: AtomicU64::new(0),
        totals: AtomicTotals::default(),
    };
    let threads = match options.threads {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        n => n,
    };
    let walked = batch::run(&shared, threads, |queue| {
        walk::Walk::new(&shared, &filter, queue, &mut progress).run()
    });
    let error = shared.error.into_inner();
    if let Some(error) = error.unwrap_or_else(PoisonError::into_inner) {
        return Err(error);
    }
    walked?;
    let totals = shared.totals.get();
    progress(&totals);
    let problems = shared.problems.into_inner();
    let mut problems = problems.unwrap_or_else(PoisonError::into_inner);
    problems.sort();
    Ok(Report {
        totals,
        problems,
        dropped: shared.dropped.into_inner(),
    })
}

fn is_interrupted(error: &Error) -> bool {
    matches!(error, Error::Io(_, e) if e.kind() == std::io::ErrorKind::Interrupted)
}

/// What all threads of an extraction use.
struct Shared<'a> {
    image: &'a Image,
    options: &'a Options,
    owners: bool,
    root: target::Root,
    /// Most files that stay open between their pieces.
    open_max: u64,
    open: AtomicU64,
    /// Set by the first error that ends it all.
    stop: AtomicBool,
    error: Mutex<Option<Error>>,
    problems: Mutex<Vec<Problem>>,
    dropped: AtomicU64,
    totals: AtomicTotals,
}

#[derive(Default)]
struct AtomicTotals {
    files: AtomicU64,
    kept: AtomicU64,
    directories: AtomicU64,
    symlinks: AtomicU64,
    specials: AtomicU64,
    links: AtomicU64,
    bytes: AtomicU64,
    clusters: AtomicU64,
}

impl AtomicTotals {
    fn get(&self) -> Totals {
        Totals {
            files: self.files.load(Relaxed),
            kept: self.kept.load(Relaxed),
            directories: self.directories.load(Relaxed),
            symlinks: self.symlinks.load(Relaxed),
            specials: self.specials.load(Relaxed),
            links: self.links.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
            clusters: self.clusters.load(Relaxed),
        }
    }
}

impl Shared<'_> {
    /// Notes what could not be restored.
    fn problem(&self, path: Vec<u8>, what: impl ToString) {
        let mut problems = self.problems.lock().unwrap_or_else(PoisonError::into_inner);
        if problems.len() >= self.options.problems {
            self.dropped.fetch_add(1, Relaxed);
        } else {
            let what = what.to_string();
            problems.push(Problem { path, what });
        }
    }

    /// Something is left out: the end, or a problem with [`Options::keep_going`].
    fn fail(&self, path: Vec<u8>, error: Error) -> Result<()> {
        // A stop is of the whole extraction, not of a file.
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
            error.within(shown)
        })
    }

    /// As [`fail`](Self::fail), on a worker: the first error is kept for the caller, and all others stop.
    fn fail_later(&self, path: Vec<u8>, error: Error) {
        if let Err(error) = self.fail(path, error) {
            let mut first = self.error.lock().unwrap_or_else(PoisonError::into_inner);
            first.get_or_insert(error);
            self.stop.store(true, Relaxed);
        }
    }

    /// True if `error` ends it all.
    fn ends(&self, error: &Error) -> bool {
        !self.options.keep_going || matches!(error, Error::Limit(_))
    }

    fn stopped(&self) -> bool {
        self.stop.load(Relaxed) || self.options.stop.load(Relaxed)
    }

    /// Why there is no whole tree, if no worker has a reason.
    fn interrupted(&self) -> Error {
        let totals = self.totals.get();
        Error::io(
            "",
            format_args!(
                "stopped; {} files are complete, no other was left",
                totals.files
            ),
            std::io::ErrorKind::Interrupted.into(),
        )
    }
}
