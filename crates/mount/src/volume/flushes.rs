//! One flush of the device for all who wait for one.
//!
//! Whoever comes first flushes; who comes while that runs is served by the next one, together with all others that came, and does not keep a thread waiting.

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Requests that wait for a flush, by their numbers.
#[derive(Default)]
pub(super) struct Flushes {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    running: bool,
    /// Came after the one under way began, so that it says nothing of what they wrote.
    waiting: Vec<u64>,
}

impl Flushes {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Each change below is a single step: a panic elsewhere leaves nothing half-done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `tell` for request `unique` after a flush that begins after this call. If one is under way it returns at once, and the thread that flushes
    /// calls `tell`; otherwise this thread does that until nobody waits.
    pub(super) fn join(
        &self,
        unique: u64,
        flush: impl Fn() -> io::Result<()>,
        tell: impl Fn(&[u64], &io::Result<()>),
    ) {
        let mut state = self.lock();
        if state.running {
            state.waiting.push(unique);
            return;
        }
        state.running = true;
        let mut group = vec![unique];
        while !group.is_empty() {
            drop(state);
            let result = flush();
            tell(&group, &result);
            state = self.lock();
            group = std::mem::take(&mut state.waiting);
        }
        state.running = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn all_who_come_during_a_flush_share_the_next_one() {
        let flushes = Flushes::default();
        let (begun, begins) = mpsc::channel();
        let (go, wait) = mpsc::channel::<()>();
        let told = Mutex::new(Vec::new());
        let tell = |group: &[u64], result: &io::Result<()>| {
            told.lock().unwrap().push((group.to_vec(), result.is_ok()));
        };
        std::thread::scope(|scope| {
            let first = scope.spawn(|| {
                // Moved into this thread: only it flushes.
                let (begun, wait) = (begun, wait);
                let flush = || {
                    begun.send(()).unwrap();
                    wait.recv().map_err(io::Error::other)
                };
                flushes.join(0, flush, tell);
            });
            begins.recv().unwrap();
            let never = || -> io::Result<()> { panic!("one is under way") };
            for unique in 1..=5 {
                flushes.join(unique, never, tell);
            }
            assert!(told.lock().unwrap().is_empty());
            go.send(()).unwrap();
            begins.recv().unwrap();
            // These come too late for the second one.
            flushes.join(6, never, tell);
            go.send(()).unwrap();
            begins.recv().unwrap();
            // The third one fails.
            drop(go);
            first.join().unwrap();
        });
        let want = [
            (vec![0], true),
            (vec![1, 2, 3, 4, 5], true),
            (vec![6], false),
        ];
        assert_eq!(*told.lock().unwrap(), want);
        // Nobody flushes any more: the next one does it by itself.
        flushes.join(7, || Ok(()), tell);
        assert_eq!(told.lock().unwrap().last(), Some(&(vec![7], true)));
    }
}
