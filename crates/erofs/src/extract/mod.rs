//! Parallel extraction of images. Each cluster is decoded once and written to every file that contains it.
//!
//! ```text
//!   walk     one thread: creates directories, splits files into pieces    walk.rs filter.rs
//!     └► batch    pieces sorted by the position of their cluster          batch.rs
//!          └► workers   decode a cluster, copy its pieces, write          write.rs
//!               └► last piece of a file: owner, mode, attributes, times   attributes.rs
//!   at the end: hard links, then directories from the leaves up           walk.rs
//!   then, if asked for: deletion of what the image lacks                  delete.rs
//! ```
//!
//! Invariants:
//!
//! * Nothing outside the target is modified, whatever the image contains and even if symlinks are planted during the
//!   extraction. Every name is checked, and every access starts from a directory handle and follows no symlink
//!   (target.rs).
//! * No existing file is written to. [`Options::overwrite`] unlinks it first. [`Options::update`] keeps it if it is
//!   complete.
//! * However an extraction ends, it leaves no partial file under its final name: an error or a stop removes incomplete
//!   files. Only damage tolerated by [`Options::keep_going`] leaves files with gaps. A killed process can leave partial
//!   files under their final names only if they are small and directly in a directory that existed before (target.rs).
//! * Memory use does not grow with the tree: the batch size and the number of open files are bounded.

mod attributes;
mod batch;
mod delete;
mod filter;
mod piece;
mod report;
mod shared;
mod target;
mod walk;
mod write;

pub use report::{Options, Problem, Report, Totals};

use crate::open_files;
use crate::read::Image;
use crate::{Error, Result};
use shared::{AtomicTotals, Shared};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Mutex, PoisonError};

/// Extracts the tree of an image into the directory `target`, which is created if it does not exist.
///
/// `progress` is called periodically by the calling thread, and once at the end.
///
/// # Errors
/// Returns the first damage, limit or failure that omits a name or data. With [`Options::keep_going`] these become
/// problems in the report. Attributes that the target does not accept are always problems, never errors. `Usage` if a
/// path is not in the image, a glob is invalid, or a file already exists. `Io` of kind `Interrupted` if the extraction
/// was stopped. After an error, complete files remain with their attributes. Directories remain, possibly without
/// theirs. Incomplete files are removed.
pub fn extract(
    image: &Image,
    target: &Path,
    options: &Options,
    mut progress: impl FnMut(&Totals),
) -> Result<Report> {
    if options.update && !(options.overwrite && options.times) {
        return Err(Error::usage("update requires overwrite and times"));
    }
    let selects_paths = options.include.is_empty() && options.exclude.is_empty();
    if options.delete && !(options.overwrite && selects_paths && options.strip == 0) {
        return Err(Error::usage(
            "delete requires overwrite, and whole paths without patterns",
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
    // Only after all files are complete.
    let walked = walked.and_then(|()| match options.delete && !shared.stopped() {
        true => delete::delete(&shared, filter.paths()),
        false => Ok(()),
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
