//! Store of byte ranges that the caller supplies, for programs that must not block in a read.

use crate::ReadAt;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Unit of requests: a missing range starts and ends at a multiple of it, or at the end. Unit: bytes.
const CHUNK: u64 = 64 << 10;

/// Store that holds the ranges it was given. A read of another range fails with
/// [`WouldBlock`](io::ErrorKind::WouldBlock) and notes the range that is missing.
///
/// The caller obtains that range however it likes, for example with an asynchronous request, and repeats the operation:
///
/// ```
/// use std::io::ErrorKind::WouldBlock;
/// use tuff_store::{RangeStore, ReadAt};
///
/// let far_away = vec![7; 100_000];
/// let store = RangeStore::new(far_away.len() as u64, 1 << 20);
/// let mut buf = [0; 4];
/// while store.read_exact_at(&mut buf, 70_000).is_err_and(|e| e.kind() == WouldBlock) {
///     let range = store.missing().expect("the read failed");
///     let (start, end) = (range.offset as usize, (range.offset + range.len) as usize);
///     store.put(range.offset, far_away[start..end].to_vec());
/// }
/// assert_eq!(buf, [7; 4]);
/// ```
pub struct RangeStore {
    size: u64,
    capacity: usize,
    state: Mutex<State>,
}

/// Range that a read of a [`RangeStore`] needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MissingRange {
    /// Position of its first byte.
    pub offset: u64,
    /// Length of the range, never 0. Unit: bytes.
    pub len: u64,
}

#[derive(Default)]
struct State {
    /// Ranges by position. They do not overlap.
    ranges: BTreeMap<u64, Vec<u8>>,
    /// Positions of the ranges, the oldest first.
    order: VecDeque<u64>,
    held: usize,
    missing: Option<MissingRange>,
}

impl RangeStore {
    /// Creates an empty store of `size` bytes, which keeps at most `capacity` bytes, and at least 4 MiB. The oldest
    /// ranges are dropped first.
    ///
    /// A read that needs more bytes than the capacity never succeeds; read large files in parts.
    pub fn new(size: u64, capacity: usize) -> Self {
        Self {
            size,
            capacity: capacity.max(4 << 20),
            state: Mutex::default(),
        }
    }

    /// Supplies the bytes at `offset`. Bytes past the end, and those that the store already holds, are ignored.
    pub fn put(&self, offset: u64, mut bytes: Vec<u8>) {
        let left = self.size.saturating_sub(offset);
        bytes.truncate(usize::try_from(left).unwrap_or(usize::MAX));
        let mut state = self.state();
        state.missing = None;
        let (mut at, mut rest) = (offset, &bytes[..]);
        while !rest.is_empty() {
            let held = state.held_at(at);
            // Fits: at most the length of a slice.
            let gap = state.gap(at, rest.len() as u64) as usize;
            if held == 0 {
                let (new, more) = rest.split_at(gap);
                state.insert(at, new.to_vec());
                (at, rest) = (at + gap as u64, more);
            } else {
                let skip = held.min(rest.len());
                (at, rest) = (at + skip as u64, &rest[skip..]);
            }
        }
        state.shrink(self.capacity);
    }

    /// Returns the range that the last failed read needs. `None` if no read failed since the last [`put`](Self::put).
    pub fn missing(&self) -> Option<MissingRange> {
        self.state().missing
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Returns the range that holds byte `at`, with the position of the byte in it.
    fn find(&self, at: u64) -> Option<(&Vec<u8>, usize)> {
        let (start, bytes) = self.ranges.range(..=at).next_back()?;
        let from = usize::try_from(at - start).ok()?;
        (from < bytes.len()).then_some((bytes, from))
    }

    /// Returns the number of bytes that are held from `at` on, in one range.
    fn held_at(&self, at: u64) -> usize {
        self.find(at).map_or(0, |(bytes, from)| bytes.len() - from)
    }

    /// Returns the number of bytes from `at` to the next range, at most `len`.
    fn gap(&self, at: u64, len: u64) -> u64 {
        let next = self.ranges.range(at..).next();
        next.map_or(len, |(start, _)| (start - at).min(len))
    }

    fn insert(&mut self, at: u64, bytes: Vec<u8>) {
        self.held += bytes.len();
        self.order.push_back(at);
        self.ranges.insert(at, bytes);
    }

    fn shrink(&mut self, capacity: usize) {
        while self.held > capacity && self.order.len() > 1 {
            let oldest = self.order.pop_front();
            let dropped = oldest.and_then(|at| self.ranges.remove(&at));
            self.held -= dropped.map_or(0, |bytes| bytes.len());
        }
    }
}

impl ReadAt for RangeStore {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let left = self.size.saturating_sub(offset);
        let want = left.min(buf.len() as u64);
        if want == 0 {
            return Ok(0);
        }
        let mut state = self.state();
        if let Some((bytes, from)) = state.find(offset) {
            // Fits: at most the length of a buffer.
            let n = (want as usize).min(bytes.len() - from);
            buf[..n].copy_from_slice(&bytes[from..from + n]);
            return Ok(n);
        }
        // The first range that was missed is needed for certain; later reads may be attempts to do without it.
        if state.missing.is_none() {
            let start = offset / CHUNK * CHUNK;
            let end = offset
                .saturating_add(want)
                .div_ceil(CHUNK)
                .saturating_mul(CHUNK);
            state.missing = Some(MissingRange {
                offset: start,
                len: end.min(self.size) - start,
            });
        }
        Err(io::Error::new(
            io::ErrorKind::WouldBlock,
            "the range is not in memory",
        ))
    }

    fn size(&self) -> u64 {
        self.size
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_names_the_range_that_it_lacks() {
        let store = RangeStore::new(200_000, 0);
        let mut buf = [1; 10];
        let error = store.read_exact_at(&mut buf, 131_070).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        let range = |offset, len| Some(MissingRange { offset, len });
        assert_eq!(store.missing(), range(65_536, 131_072));
        store.put(65_536, vec![0; 65_536]);
        assert_eq!(store.missing(), None);
        assert!(store.read_exact_at(&mut buf, 131_070).is_err());
        assert_eq!(store.missing(), range(131_072, 65_536));
        store.put(131_072, vec![2; 65_536]);
        store.read_exact_at(&mut buf, 131_070).unwrap();
        assert_eq!(buf, [0, 0, 2, 2, 2, 2, 2, 2, 2, 2]);
    }

    #[test]
    fn overlapping_ranges_keep_the_bytes_that_came_first() {
        let store = RangeStore::new(100, 0);
        store.put(10, vec![1; 10]);
        store.put(30, vec![2; 10]);
        store.put(0, vec![3; 200]);
        let mut all = [0; 100];
        store.read_exact_at(&mut all, 0).unwrap();
        let expected = [
            vec![3; 10],
            vec![1; 10],
            vec![3; 10],
            vec![2; 10],
            vec![3; 60],
        ]
        .concat();
        assert_eq!(all[..], expected);
        assert_eq!(store.read_at(&mut all, 100).unwrap(), 0);
    }

    #[test]
    fn old_ranges_are_dropped_at_the_capacity() {
        let store = RangeStore::new(1 << 30, 4 << 20);
        for n in 0..8 {
            store.put(n << 20, vec![0; 1 << 20]);
        }
        let is_held = |n: u64| store.read_exact_at(&mut [0; 16], n << 20).is_ok();
        let held: Vec<u64> = (0..8).filter(|n| is_held(*n)).collect();
        assert_eq!(held, [4, 5, 6, 7]);
    }
}
