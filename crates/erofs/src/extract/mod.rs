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
