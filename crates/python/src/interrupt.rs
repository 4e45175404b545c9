//! Work that ^C stops.

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// Interval at which signals are handled.
const TICK: Duration = Duration::from_millis(50);

/// Runs `work` in a thread, and lets Python handle signals meanwhile. If a handler raises an exception, returns it at once: the
/// thread ends by itself, when what it waits for has come or is late.
pub(crate) fn leave<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> T + Send + 'static,
) -> PyResult<T> {
    let (done, ended) = channel::<T>();
    // Only this thread receives; the lock lets it leave the interpreter meanwhile.
    let ended = Mutex::new(ended);
    let wait = || {
        let ended = ended.lock().unwrap_or_else(PoisonError::into_inner);
        ended.recv_timeout(TICK)
    };
    let started = thread::Builder::new().spawn(move || {
        // No one receives if an exception was raised.
        let _ = done.send(work());
    });
    started?;
    loop {
        match py.detach(wait) {
            Ok(result) => return Ok(result),
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(PyRuntimeError::new_err("bug in tuff: a thread has failed"));
            }
        }
    }
}

/// Runs `work` in a thread, and lets Python handle signals meanwhile. If a handler raises an exception, such as
/// `KeyboardInterrupt`, sets `stop`, waits for the work to end, and returns the exception.
pub(crate) fn run<T: Send>(
    py: Python<'_>,
    stop: &AtomicBool,
    work: impl FnOnce() -> T + Send,
) -> PyResult<T> {
    let (done, ended) = channel::<()>();
    // Only this thread receives; the lock lets it leave the interpreter meanwhile.
    let ended = Mutex::new(ended);
    let wait = || {
        let ended = ended.lock().unwrap_or_else(PoisonError::into_inner);
        ended.recv_timeout(TICK)
    };
    thread::scope(|scope| {
        let worker = scope.spawn(move || {
            // Dropped when the work ends, also by a panic.
            let _done = done;
            work()
        });
        let mut raised = None;
        while let Err(RecvTimeoutError::Timeout) = py.detach(wait) {
            if raised.is_none()
                && let Err(e) = py.check_signals()
            {
                stop.store(true, Relaxed);
                raised = Some(e);
            }
        }
        let result = py.detach(|| worker.join());
        match (raised, result) {
            (Some(e), _) => Err(e),
            (None, Ok(result)) => Ok(result),
            (None, Err(panic)) => std::panic::resume_unwind(panic),
        }
    })
}
