//! Queue of long requests that any thread may answer.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Slots with long requests that any thread may answer.
#[derive(Default)]
pub(super) struct SharedSlots {
    slots: Mutex<VecDeque<usize>>,
    len: AtomicUsize,
}

impl SharedSlots {
    /// Adds slots and returns their number.
    pub(super) fn put(&self, more: impl Iterator<Item = usize>) -> usize {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        slots.extend(more);
        self.len.store(slots.len(), Ordering::Release);
        slots.len()
    }

    /// Removes the first slot.
    pub(super) fn take(&self) -> Option<usize> {
        if self.is_empty() {
            return None;
        }
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let first = slots.pop_front();
        self.len.store(slots.len(), Ordering::Release);
        first
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len.load(Ordering::Acquire) == 0
    }
}
