//! Group flush: one flush of the device for all waiting requests.
//!
//! Requests that arrive during a flush share the next one. They do not block a thread.

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Requests that wait for a flush.
pub(super) struct GroupFlush<T> {
    state: Mutex<State<T>>,
}

struct State<T> {
    running: bool,
    /// Requests that arrived during the current flush, which does not cover their writes.
    waiting: Vec<T>,
}

impl<T> Default for GroupFlush<T> {
    fn default() -> Self {
        let state = State {
            running: false,
            waiting: Vec::new(),
        };
        Self {
            state: Mutex::new(state),
        }
    }
}

impl<T> GroupFlush<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        // Each change below is a single step: a panic leaves a consistent state.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a request that waits for a flush starting after this call. Returns true if the caller must
    /// [run](Self::run) the flush.
    pub(super) fn enter(&self, request: T) -> bool {
        let mut state = self.lock();
        state.waiting.push(request);
        !std::mem::replace(&mut state.running, true)
    }

    /// Flushes until no request waits. Calls `tell` for each group after its flush.
    pub(super) fn run(
        &self,
        flush: impl Fn() -> io::Result<()>,
        tell: impl Fn(&[T], &io::Result<()>),
    ) {
        loop {
            let group = {
                let mut state = self.lock();
                state.running = !state.waiting.is_empty();
                std::mem::take(&mut state.waiting)
            };
            if group.is_empty() {
                return;
            }
            let result = flush();
            tell(&group, &result);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn requests_during_a_flush_share_the_next_one() {
        let flushes = GroupFlush::default();
        let (started, begins) = mpsc::channel();
        let (go, wait) = mpsc::channel::<()>();
        let reported = Mutex::new(Vec::new());
        let tell = |group: &[u64], result: &io::Result<()>| {
            reported
                .lock()
                .unwrap()
                .push((group.to_vec(), result.is_ok()));
        };
        std::thread::scope(|scope| {
            let first = scope.spawn(|| {
                // Moved into this thread: only it flushes.
                let (started, wait) = (started, wait);
                let flush = || {
                    started.send(()).unwrap();
                    wait.recv().map_err(io::Error::other)
                };
                assert!(flushes.enter(0));
                flushes.run(flush, tell);
            });
            begins.recv().unwrap();
            for unique in 1..=5 {
                assert!(!flushes.enter(unique));
            }
            assert!(reported.lock().unwrap().is_empty());
            go.send(()).unwrap();
            begins.recv().unwrap();
            // This request arrives too late for the second flush.
            assert!(!flushes.enter(6));
            go.send(()).unwrap();
            begins.recv().unwrap();
            // The third flush fails.
            drop(go);
            first.join().unwrap();
        });
        let want = [
            (vec![0], true),
            (vec![1, 2, 3, 4, 5], true),
            (vec![6], false),
        ];
        assert_eq!(*reported.lock().unwrap(), want);
        // No flush is running: the next request runs its own.
        assert!(flushes.enter(7));
        flushes.run(|| Ok(()), tell);
        assert_eq!(reported.lock().unwrap().last(), Some(&(vec![7], true)));
    }
}
