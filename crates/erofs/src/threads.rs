//! Scoped helper threads. Where the system refuses a thread, the work continues with fewer.

use std::thread::{Builder, Scope};

/// Largest thread count that a user may request.
pub const THREADS_MAX: u16 = 256;

/// Starts up to `count` threads that run `work`, with names that begin with `name`, and returns the number of started
/// threads.
pub fn start<'scope>(
    scope: &'scope Scope<'scope, '_>,
    name: &str,
    count: usize,
    work: impl FnOnce() + Clone + Send + 'scope,
) -> usize {
    (0..count)
        .take_while(|n| {
            let thread = Builder::new().name(format!("{name}-{n}"));
            thread.spawn_scoped(scope, work.clone()).is_ok()
        })
        .count()
}
