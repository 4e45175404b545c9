//! Bounded cache shared by threads: sharded by key hash, limited by weight, with second-chance (clock)
//! eviction.

use hashbrown::{DefaultHashBuilder, HashMap};
use std::hash::{BuildHasher, Hash};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Sharded cache with a byte budget and second-chance eviction.
pub(crate) struct Cache<K, V> {
    shards: Vec<Mutex<Shard<K, V>>>,
    hasher: DefaultHashBuilder,
    /// Budget of each shard. Unit: bytes.
    budget: usize,
}

struct Shard<K, V> {
    places: HashMap<K, usize>,
    slots: Vec<Slot<K, V>>,
    /// Clock hand: the slot at which the search for the next eviction resumes.
    hand: usize,
    used: usize,
}

struct Slot<K, V> {
    key: K,
    value: V,
    weight: usize,
    /// Reference bit: set by `get`, cleared when the hand passes the slot.
    used: bool,
}

impl<K: Hash + Eq + Copy, V: Clone> Cache<K, V> {
    /// Creates a cache of `budget` bytes in `shards` parts, each with its own lock. A value heavier than the
    /// budget of its shard is not kept.
    pub(crate) fn new(budget: usize, shards: usize) -> Self {
        let shard = || {
            Mutex::new(Shard {
                places: HashMap::new(),
                slots: Vec::new(),
                hand: 0,
                used: 0,
            })
        };
        Self {
            shards: (0..shards).map(|_| shard()).collect(),
            hasher: DefaultHashBuilder::default(),
            budget: budget / shards,
        }
    }

    pub(crate) fn get(&self, key: &K) -> Option<V> {
        let mut shard = self.shard(key);
        let at = *shard.places.get(key)?;
        let slot = &mut shard.slots[at];
        slot.used = true;
        Some(slot.value.clone())
    }

    /// Inserts `value` and evicts other values to make room. Replaces an existing value of the same key.
    /// Ignores a value heavier than the budget of its shard.
    pub(crate) fn put(&self, key: K, value: V, weight: usize) {
        if weight > self.budget {
            return;
        }
        let mut shard = self.shard(&key);
        if let Some(at) = shard.places.get(&key).copied() {
            shard.remove(at);
        }
        while shard.used + weight > self.budget {
            shard.drop_one();
        }
        shard.used += weight;
        let at = shard.slots.len();
        shard.slots.push(Slot {
            key,
            value,
            weight,
            used: false,
        });
        shard.places.insert(key, at);
    }

    /// Removes the value of a key.
    pub(crate) fn remove(&self, key: &K) {
        let mut shard = self.shard(key);
        if let Some(at) = shard.places.get(key).copied() {
            shard.remove(at);
        }
    }

    /// Evicts values until each shard holds at most its part of `bytes`.
    pub(crate) fn shrink(&self, bytes: usize) {
        let part = bytes / self.shards.len();
        for shard in &self.shards {
            let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            while shard.used > part {
                shard.drop_one();
            }
        }
    }

    /// Weight of all values. Unit: bytes.
    pub(crate) fn used(&self) -> usize {
        let used =
            |shard: &Mutex<Shard<K, V>>| shard.lock().unwrap_or_else(PoisonError::into_inner).used;
        self.shards.iter().map(used).sum()
    }

    fn shard(&self, key: &K) -> MutexGuard<'_, Shard<K, V>> {
        let n = self.hasher.hash_one(key) as usize % self.shards.len();
        // A poisoned lock is safe to use: no panic can occur between the updates of a shard.
        self.shards[n]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Hash + Eq + Copy, V> Shard<K, V> {
    /// Evicts the first slot, starting at the hand, whose reference bit is clear. The shard must not be
    /// empty.
    fn drop_one(&mut self) {
        loop {
            if self.hand >= self.slots.len() {
                self.hand = 0;
            }
            if !self.slots[self.hand].used {
                self.remove(self.hand);
                return;
            }
            self.slots[self.hand].used = false;
            self.hand += 1;
        }
    }

    fn remove(&mut self, at: usize) {
        let slot = self.slots.swap_remove(at);
        self.used -= slot.weight;
        self.places.remove(&slot.key);
        if let Some(moved) = self.slots.get(at) {
            self.places.insert(moved.key, at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weight_never_exceeds_the_budget_and_used_values_stay() {
        let cache = Cache::new(100, 1);
        for i in 0..1000u32 {
            cache.put(i, i, 10);
            assert_eq!(cache.get(&0), Some(0), "used between all others");
        }
        let kept = (0..1000).filter(|i| cache.get(i).is_some()).count();
        assert_eq!(kept, 10);
        cache.put(7, 8, 10);
        assert_eq!(cache.get(&7), Some(8));
        cache.put(9, 9, 101);
        assert_eq!(cache.get(&9), None, "heavier than the whole cache");
    }
}
