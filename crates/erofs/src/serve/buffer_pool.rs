//! Pool of reusable buffers in a small number of size classes. It accounts for all memory in use.
//!
//! ```text
//!  size classes: 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, ... KiB   (four per power of two, at most a fifth unused)
//!
//!  take(len) ─► the most recently used free buffer of the class, likely still in the CPU cache
//!               ─► or a free buffer of at most twice the length: cheaper than new, zeroed pages
//!               ─► or a new buffer; if the pool is at its limit, free buffers are released first
//!  drop      ─► back to the free list of its class
//! ```
//!
//! Buffers are zeroed heap memory. Nothing is locked or mapped twice, so the kernel may move and
//! swap it. Buffers of a class have equal length, and the accounting uses this length, so the pool
//! does not fragment internally over time.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// log2 of the length of the shortest buffers. Unit: log2 of bytes.
const FIRST_BITS: u32 = 12;

/// Number of size classes. The longest is 16 MiB: the largest decoded cluster, and room to decode
/// it in place.
const CLASSES: usize = 4 * 12 + 1;

/// Returns the length of the buffers of class `n`. Unit: bytes.
fn class_len(n: usize) -> usize {
    (4 + n % 4) << (n / 4 + FIRST_BITS as usize - 2)
}

/// Returns the class of the shortest buffers that hold `len` bytes. `None` if `len` exceeds the
/// longest class.
fn class_of(len: usize) -> Option<usize> {
    let len = len.max(1 << FIRST_BITS);
    let bits = (len - 1).ilog2().max(FIRST_BITS - 1);
    // Quarter of the range between two powers of two that contains `len`, counted from 1.
    let n = if bits < FIRST_BITS {
        0
    } else {
        let quarter = (len - 1 - (1 << bits)) >> (bits - 2);
        4 * (bits - FIRST_BITS) as usize + quarter + 1
    };
    (n < CLASSES).then_some(n)
}

/// Buffer pool. Buffers return to it when they are dropped.
pub(crate) struct BufferPool {
    free: Vec<Mutex<Vec<Vec<u8>>>>,
    /// Bytes in buffers that are in use.
    used: AtomicUsize,
    /// Bytes in buffers that are free.
    spare: AtomicUsize,
    /// Total size of used and free buffers above which free buffers are released. Unit: bytes.
    limit: usize,
}

impl BufferPool {
    /// Creates a pool that keeps no free buffers while the total exceeds `limit` bytes.
    pub(crate) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self {
            free: (0..CLASSES).map(|_| Mutex::default()).collect(),
            used: AtomicUsize::new(0),
            spare: AtomicUsize::new(0),
            limit,
        })
    }

    /// Returns the memory that a buffer for `len` bytes takes. Unit: bytes.
    pub(crate) fn cost(len: usize) -> usize {
        class_of(len).map_or(len, class_len)
    }

    /// Memory in buffers that are in use. Unit: bytes.
    pub(crate) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Memory in all buffers, in use or free. Unit: bytes.
    pub(crate) fn held(&self) -> usize {
        self.used() + self.spare.load(Ordering::Relaxed)
    }

    /// Returns a buffer of at least `len` bytes. Its content is unspecified.
    pub(crate) fn take(self: &Arc<Self>, len: usize) -> PoolBuffer {
        let cost = Self::cost(len);
        let free = class_of(len).and_then(|n| {
            (n..CLASSES.min(n + 5)).find_map(|n| {
                let bytes = self.list(n).pop()?;
                self.spare.fetch_sub(bytes.len(), Ordering::Relaxed);
                self.used.fetch_add(bytes.len(), Ordering::Relaxed);
                Some(bytes)
            })
        });
        let bytes = free.unwrap_or_else(|| {
            self.used.fetch_add(cost, Ordering::Relaxed);
            self.trim(self.limit);
            vec![0; cost]
        });
        PoolBuffer {
            bytes,
            home: self.clone(),
        }
    }

    /// Releases free buffers until the pool's total is at most `limit` bytes, or none is free.
    pub(crate) fn trim(&self, limit: usize) {
        // Release long buffers first, so that few releases suffice.
        for n in (0..CLASSES).rev() {
            while self.held() > limit {
                let Some(bytes) = self.list(n).pop() else {
                    break;
                };
                self.spare.fetch_sub(bytes.len(), Ordering::Relaxed);
            }
        }
    }

    fn list(&self, n: usize) -> MutexGuard<'_, Vec<Vec<u8>>> {
        self.free[n].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, bytes: Vec<u8>) {
        let len = bytes.len();
        self.used.fetch_sub(len, Ordering::Relaxed);
        if let Some(n) = class_of(len).filter(|n| class_len(*n) == len)
            && self.held() + len <= self.limit
        {
            self.spare.fetch_add(len, Ordering::Relaxed);
            self.list(n).push(bytes);
        }
    }
}

/// Buffer of a pool. Returns to the pool when it is dropped.
pub(crate) struct PoolBuffer {
    bytes: Vec<u8>,
    home: Arc<BufferPool>,
}

impl Deref for PoolBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl DerefMut for PoolBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

impl Drop for PoolBuffer {
    fn drop(&mut self) {
        self.home.put(std::mem::take(&mut self.bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_the_shortest_that_fit() {
        let lens: Vec<usize> = (0..6).map(class_len).collect();
        assert_eq!(lens, [4096, 5120, 6144, 7168, 8192, 10240]);
        assert_eq!(class_len(CLASSES - 1), 16 << 20);
        for len in (1..70_000).chain([1 << 20, (1 << 20) + 1, 12 << 20, 16 << 20]) {
            let n = class_of(len).unwrap();
            assert!(class_len(n) >= len, "{len}");
            assert!(n == 0 || class_len(n - 1) < len, "{len}");
        }
        assert_eq!(class_of((16 << 20) + 1), None);
    }

    #[test]
    fn buffers_are_reused_and_the_limit_holds() {
        let slabs = BufferPool::new(1 << 20);
        let first = slabs.take(300_000);
        assert_eq!(slabs.used(), BufferPool::cost(300_000));
        drop(first);
        assert_eq!((slabs.used(), slabs.held()), (0, BufferPool::cost(300_000)));
        let again = slabs.take(200_000);
        assert_eq!(
            slabs.used(),
            BufferPool::cost(300_000),
            "reuses the longer buffer"
        );
        assert_eq!(slabs.held(), BufferPool::cost(300_000));
        drop(again);
        // A buffer of another class evicts it when both exceed the limit.
        let other = slabs.take(900_000);
        drop(other);
        assert!(slabs.held() <= 1 << 20, "{}", slabs.held());
        let huge = slabs.take(20 << 20);
        assert_eq!(huge.len(), 20 << 20);
        drop(huge);
        assert!(slabs.held() <= 1 << 20);
        slabs.trim(0);
        assert_eq!(slabs.held(), 0);
    }
}
