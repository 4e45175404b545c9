//! Parallel loops over numbered work items.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Scratch buffers of one thread.
#[derive(Default)]
pub(crate) struct Buffers {
    pub(crate) input: Vec<u8>,
    pub(crate) output: Vec<u8>,
}

/// Calls `work` for each number below `count`, on this thread and up to `threads - 1` others, or fewer if the
/// system cannot start them. The first error stops the loop.
pub(crate) fn each(
    count: u64,
    threads: usize,
    work: &(dyn Fn(u64, &mut Buffers) -> io::Result<()> + Sync),
) -> io::Result<()> {
    let next = AtomicU64::new(0);
    let failed: Mutex<Option<io::Error>> = Mutex::default();
    let run = || {
        let mut buffers = Buffers::default();
        loop {
            let n = next.fetch_add(1, Ordering::Relaxed);
            if n >= count || lock(&failed).is_some() {
                return;
            }
            if let Err(e) = work(n, &mut buffers) {
                lock(&failed).get_or_insert(e);
                return;
            }
        }
    };
    std::thread::scope(|scope| {
        let helpers = threads.min(usize::try_from(count).unwrap_or(usize::MAX));
        for n in 1..helpers {
            let thread = std::thread::Builder::new().name(format!("verity-{n}"));
            if thread.spawn_scoped(scope, run).is_err() {
                break;
            }
        }
        run();
    });
    lock(&failed).take().map_or(Ok(()), Err)
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
