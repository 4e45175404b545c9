//! Threads, files and progress that all stages of a build share.

use crate::Result;
use crate::emit::targets::Targets;
use crate::options::Options;
use crate::pack::memory_budget;
use crate::progress::Progress;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use tuff_erofs::threads;

/// Threads, files and progress of a build.
pub(crate) struct Environment<'a> {
    /// Number of workers.
    pub(crate) threads: usize,
    /// Memory limit of the control group in bytes.
    pub(crate) memory_limit: Option<u64>,
    /// Directory of temporary files.
    pub(crate) temporary: PathBuf,
    /// Outputs of the build.
    pub(crate) targets: Targets<'a>,
    /// Progress, checked for stop requests.
    pub(crate) progress: &'a Progress,
}

impl<'a> Environment<'a> {
    /// Returns the environment of a build with these options on this machine.
    pub(crate) fn new(options: &Options, targets: Targets<'a>, progress: &'a Progress) -> Self {
        let memory_limit = tuff_store::memory_limit();
        let temporary = options.resources.temporary.clone();
        Self {
            threads: memory_budget::threads(options, memory_limit),
            memory_limit,
            temporary: temporary.unwrap_or_else(|| targets.image.scratch()),
            targets,
            progress,
        }
    }
}

/// Runs `work` for every index below `count` on `threads` threads, each with a context of its own. Returns the result
/// of each thread, in no particular order, or the error of the smallest index.
pub(crate) fn parallel<C: Default, T: Send + Default>(
    count: usize,
    threads: usize,
    progress: &Progress,
    work: &(dyn Fn(usize, &mut C, &mut T) -> Result<()> + Sync),
) -> Result<Vec<T>> {
    let next = AtomicUsize::new(0);
    let results: Mutex<(Vec<T>, Vec<_>)> = Mutex::default();
    let run = || {
        let (mut context, mut result) = (C::default(), T::default());
        let mut failed = None;
        while failed.is_none() {
            let i = next.fetch_add(1, Ordering::Relaxed);
            if i >= count {
                break;
            }
            let stopped = progress.check();
            if let Err(e) = stopped.and_then(|()| work(i, &mut context, &mut result)) {
                // Smaller indexes were all taken, so the error does not depend on timing.
                next.store(count, Ordering::Relaxed);
                failed = Some((i, e));
            }
        }
        let mut results = results.lock().unwrap_or_else(PoisonError::into_inner);
        results.0.push(result);
        results.1.extend(failed);
    };
    std::thread::scope(|scope| {
        threads::start(scope, "build", threads.min(count).saturating_sub(1), run);
        run();
    });
    let (results, errors) = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    match errors.into_iter().min_by_key(|(i, _)| *i) {
        Some((_, e)) => Err(e),
        None => Ok(results),
    }
}
