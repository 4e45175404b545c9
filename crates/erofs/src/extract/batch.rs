//! Queue of file pieces, sorted by the position of their data, that feeds the workers.

use super::piece::{BATCH, Piece};
use super::shared::Shared;
use super::write::Writer;
use crate::threads;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Approximate amount of decoded data in one work item, in bytes.
const ITEM: u64 = 2 << 20;
/// Cost of creating a file, expressed as the number of bytes that could be decoded in the same time.
const FILE: u64 = 16 << 10;
/// Maximum number of queued pieces. Above it, the walk processes items itself.
const WAITING: usize = 4 * BATCH;

/// Queue of work items, with a condition variable for the threads that wait for them.
pub(super) struct Queue<'a> {
    shared: &'a Shared<'a>,
    state: Mutex<QueueState>,
    changed: Condvar,
}

#[derive(Default)]
struct QueueState {
    items: VecDeque<Vec<Piece>>,
    /// Number of pieces in the queued items.
    waiting: usize,
    /// Number of items taken by workers and not finished.
    running: usize,
    closed: bool,
}

impl QueueState {
    fn take(&mut self) -> Option<Vec<Piece>> {
        let item = self.items.pop_front()?;
        self.waiting -= item.len();
        Some(item)
    }
}

/// Runs `walk` in parallel with up to `threads - 1` workers. The walking thread also processes items when the queue is
/// full.
pub(super) fn run<T>(shared: &Shared<'_>, threads: usize, walk: impl FnOnce(&Queue<'_>) -> T) -> T {
    let queue = Queue {
        shared,
        state: Mutex::default(),
        changed: Condvar::new(),
    };
    std::thread::scope(|scope| {
        // Also closes the queue when `walk` panics. Otherwise the workers would wait forever.
        let _close = Close(&queue);
        threads::start(scope, "extract", threads - 1, || queue.work());
        walk(&queue)
    })
}

struct Close<'a, 'b>(&'a Queue<'b>);

impl Drop for Close<'_, '_> {
    fn drop(&mut self) {
        self.0.lock().closed = true;
        self.0.changed.notify_all();
    }
}

impl Queue<'_> {
    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        let mut writer = Writer::new(self.shared);
        let mut state = self.lock();
        loop {
            if let Some(item) = state.take() {
                state.running += 1;
                drop(state);
                writer.run(item);
                state = self.lock();
                state.running -= 1;
                self.changed.notify_all();
            } else if state.closed {
                return;
            } else {
                state = self
                    .changed
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    /// Sorts pieces and queues them as items. Pieces of one cluster stay in one item. Processes items itself while the
    /// queue is too long.
    pub(super) fn add(&self, pieces: &mut Vec<Piece>, writer: &mut Writer<'_>) {
        pieces.sort_by_key(Piece::key);
        let mut item: Vec<Piece> = Vec::new();
        let mut weight = 0;
        for piece in pieces.drain(..) {
            let last = item.last();
            let same_cluster = last.is_some_and(|l| {
                l.cluster().is_some() && l.key().0 == piece.key().0 && l.key().1 == piece.key().1
            });
            if weight >= ITEM && !same_cluster {
                self.push(std::mem::take(&mut item));
                weight = 0;
            }
            if !last_is(item.last(), &piece) {
                weight += FILE;
            }
            weight += piece.len;
            item.push(piece);
        }
        if !item.is_empty() {
            self.push(item);
        }
        while self.lock().waiting > WAITING {
            self.help(writer);
        }
    }

    fn push(&self, item: Vec<Piece>) {
        let mut state = self.lock();
        state.waiting += item.len();
        state.items.push_back(item);
        drop(state);
        self.changed.notify_all();
    }

    fn help(&self, writer: &mut Writer<'_>) {
        let item = self.lock().take();
        if let Some(item) = item {
            writer.run(item);
        }
    }

    /// Processes items until the queue is empty, then waits for the items that workers have taken.
    pub(super) fn drain(&self, writer: &mut Writer<'_>) {
        loop {
            let mut state = self.lock();
            if state.items.is_empty() {
                while state.running > 0 {
                    state = self
                        .changed
                        .wait(state)
                        .unwrap_or_else(PoisonError::into_inner);
                }
                return;
            }
            drop(state);
            self.help(writer);
        }
    }
}

fn last_is(last: Option<&Piece>, piece: &Piece) -> bool {
    last.is_some_and(|l| Arc::ptr_eq(&l.task, &piece.task))
}
