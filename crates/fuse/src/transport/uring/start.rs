//! Start of the rings: the kernel sends no request before all slots are registered.

use std::io;
use std::sync::{Condvar, Mutex, PoisonError};

/// Synchronises the start of all threads.
#[derive(Default)]
pub(super) struct StartBarrier {
    state: Mutex<StartState>,
    more: Condvar,
}

#[derive(Default)]
struct StartState {
    /// Number of threads that registered their slots or failed to.
    count: usize,
    /// First error of a thread that cannot serve.
    error: Option<io::Error>,
}

impl StartBarrier {
    /// Notes that a thread registered its slots, or why it cannot.
    pub(super) fn note(&self, error: Option<io::Error>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.count += 1;
        state.error = state.error.take().or(error);
        self.more.notify_all();
    }

    /// Waits for `threads` threads.
    ///
    /// # Errors
    /// Returns the first error of a thread.
    pub(super) fn wait(&self, threads: usize) -> io::Result<()> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let wait = self.more.wait_while(state, |state| {
            state.count < threads && state.error.is_none()
        });
        let mut state = wait.unwrap_or_else(PoisonError::into_inner);
        state.error.take().map_or(Ok(()), Err)
    }
}
