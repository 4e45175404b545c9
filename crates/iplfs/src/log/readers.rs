//! Readers that hold resolved addresses.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Active readers, by the checkpoint at which they resolved their addresses.
#[derive(Default, Clone)]
pub(crate) struct Readers(Arc<Mutex<BTreeMap<u64, u64>>>);

impl Readers {
    /// Registers a reader that resolves addresses while `version` is the newest checkpoint.
    pub(crate) fn enter(&self, version: u64) -> ReaderGuard {
        *self
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .entry(version)
            .or_default() += 1;
        ReaderGuard {
            readers: self.clone(),
            version,
        }
    }

    /// Checkpoint version of the oldest active reader.
    pub(crate) fn oldest(&self) -> Option<u64> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .keys()
            .next()
            .copied()
    }
}

/// Registration of a reader. The blocks that it resolved are not discarded until it is dropped.
pub(crate) struct ReaderGuard {
    readers: Readers,
    version: u64,
}

impl Drop for ReaderGuard {
    fn drop(&mut self) {
        let mut readers = self
            .readers
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = readers.get_mut(&self.version) {
            *count -= 1;
            if *count == 0 {
                readers.remove(&self.version);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_active_reader_is_returned() {
        let readers = Readers::default();
        let a = readers.enter(3);
        let b = readers.enter(3);
        let _c = readers.enter(9);
        drop(a);
        assert_eq!(readers.oldest(), Some(3));
        drop(b);
        assert_eq!(readers.oldest(), Some(9));
    }
}
