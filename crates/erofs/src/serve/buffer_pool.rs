//! Memory that is used again: buffers of few lengths, from a pool that counts them.
//!
//! ```text
//!  lengths: 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, ... KiB       four to a doubling, so at most a fifth is wasted
//!
//!  take(len) ─► the free buffer of its class that was used last, still in the processor's cache
//!               ─► or one of up to twice the length: cheaper than new memory, which the kernel clears page by page
//!               ─► or a new one; free ones of other classes go first if the pool is at its limit
//!  drop      ─► free
//! ```
//!
//! Plain zeroed heap memory: nothing is pinned or mapped twice, so the kernel may move and swap it. Buffers of a class
//! fit each other exactly and what is counted is their length, so use for a long time leaves no holes inside the pool.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The shortest buffer. Unit: log2 of bytes.
const FIRST_BITS: u32 = 12;

/// Classes up to 16 MiB: more than a cluster decodes to, and room to decode it in place.
const CLASSES: usize = 4 * 12 + 1;

/// Length of the buffers of class `n`. Unit: bytes.
fn class_len(n: usize) -> usize {
    (4 + n % 4) << (n / 4 + FIRST_BITS as usize - 2)
}

/// The class of the shortest buffers that hold `len` bytes. `None`: none do.
fn class_of(len: usize) -> Option<usize> {
    let len = len.max(1 << FIRST_BITS);
    let bits = (len - 1).ilog2().max(FIRST_BITS - 1);
    // The quarter of its doubling that `len` ends in, counted from 1.
    let n = if bits < FIRST_BITS {
        0
    } else {
        let quarter = (len - 1 - (1 << bits)) >> (bits - 2);
        4 * (bits - FIRST_BITS) as usize + quarter + 1
    };
    (n < CLASSES).then_some(n)
}

/// The pool.
pub(crate) struct BufferPool {
    free: Vec<Mutex<Vec<Vec<u8>>>>,
    /// Bytes in buffers that are in use.
    used: AtomicUsize,
    /// Bytes in buffers that are free.
    spare: AtomicUsize,
    /// What free buffers are dropped for. Unit: bytes.
    limit: usize,
}

impl BufferPool {
    /// A pool that keeps no free buffers beyond a total of `limit` bytes.
    pub(crate) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self {
            free: (0..CLASSES).map(|_| Mutex::default()).collect(),
            used: AtomicUsize::new(0),
            spare: AtomicUsize::new(0),
            limit,
        })
    }

    /// What a buffer for `len` bytes takes. Unit: bytes.
    pub(crate) fn cost(len: usize) -> usize {
        class_of(len).map_or(len, class_len)
    }

    /// Bytes in buffers that are in use.
    pub(crate) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Bytes in all buffers.
    pub(crate) fn held(&self) -> usize {
        self.used() + self.spare.load(Ordering::Relaxed)
    }

    /// A buffer of at least `len` bytes that hold anything.
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

    /// Gives free buffers back to the system until no more than `limit` bytes are held, or none is free.
    pub(crate) fn trim(&self, limit: usize) {
        // Long ones first: few are enough.
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

/// A buffer of the pool. Goes back when it is dropped.
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
    fn buffers_come_back_and_the_limit_holds() {
        let slabs = BufferPool::new(1 << 20);
        let first = slabs.take(300_000);
        assert_eq!(slabs.used(), BufferPool::cost(300_000));
        drop(first);
        assert_eq!((slabs.used(), slabs.held()), (0, BufferPool::cost(300_000)));
        let again = slabs.take(200_000);
        assert_eq!(slabs.used(), BufferPool::cost(300_000), "the same one");
        assert_eq!(slabs.held(), BufferPool::cost(300_000));
        drop(again);
        // Another class pushes it out when both are too much.
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
