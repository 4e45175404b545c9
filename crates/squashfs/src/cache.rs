//! Small caches of decoded blocks, by their positions in the image.

use std::sync::{Arc, Mutex, PoisonError};

/// Cache of the values that were used last. Threads share it.
pub(crate) struct Cache<T> {
    entries: Mutex<Entries<T>>,
    capacity: usize,
}

struct Entries<T> {
    /// Key, time of the last use, value.
    list: Vec<(u64, u64, Arc<T>)>,
    time: u64,
}

impl<T> Cache<T> {
    /// Creates a cache of at most `capacity` values.
    pub(crate) fn new(capacity: usize) -> Self {
        let entries = Entries {
            list: Vec::new(),
            time: 0,
        };
        Self {
            entries: Mutex::new(entries),
            capacity: capacity.max(1),
        }
    }

    pub(crate) fn get(&self, key: u64) -> Option<Arc<T>> {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.time += 1;
        let time = entries.time;
        let found = entries.list.iter_mut().find(|(at, ..)| *at == key)?;
        found.1 = time;
        Some(Arc::clone(&found.2))
    }

    /// Adds a value, in the place of the one whose last use is the oldest if the cache is full.
    pub(crate) fn insert(&self, key: u64, value: Arc<T>) {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.time += 1;
        let new = (key, entries.time, value);
        if entries.list.len() < self.capacity {
            entries.list.push(new);
        } else if let Some(oldest) = entries.list.iter_mut().min_by_key(|(_, time, _)| *time) {
            *oldest = new;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_value_that_was_used_last_long_ago_gives_way() {
        let cache = Cache::new(2);
        cache.insert(1, Arc::new('a'));
        cache.insert(2, Arc::new('b'));
        assert!(cache.get(1).is_some());
        cache.insert(3, Arc::new('c'));
        assert_eq!(cache.get(1).as_deref(), Some(&'a'));
        assert_eq!(cache.get(2), None);
        assert_eq!(cache.get(3).as_deref(), Some(&'c'));
    }
}
