//! Stores that inject errors, for tests.

use crate::ReadAt;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

/// Store that fails reads of a byte range, or ends early.
pub struct Faulty<S> {
    inner: S,
    bad: std::ops::Range<u64>,
    size: u64,
    reads: AtomicU64,
}

impl<S: ReadAt> Faulty<S> {
    /// Reads that overlap `bad` fail.
    pub fn bad_range(inner: S, bad: std::ops::Range<u64>) -> Self {
        let size = inner.size();
        Self {
            inner,
            bad,
            size,
            reads: AtomicU64::new(0),
        }
    }

    /// Reads past `size` find the end of the store, though [`ReadAt::size`] still returns its old size.
    pub fn truncated(inner: S, size: u64) -> Self {
        Self {
            inner,
            bad: 0..0,
            size,
            reads: AtomicU64::new(0),
        }
    }

    /// Number of calls of [`ReadAt::read_at`].
    pub fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }
}

impl<S: ReadAt> ReadAt for Faulty<S> {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        let end = offset.saturating_add(buf.len() as u64);
        if offset < self.bad.end && end > self.bad.start {
            return Err(io::Error::other("injected read error"));
        }
        let left = self.size.saturating_sub(offset);
        let n = buf.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        if n == 0 {
            Ok(0)
        } else {
            self.inner.read_at(&mut buf[..n], offset)
        }
    }

    fn size(&self) -> u64 {
        self.inner.size()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemStore;

    #[test]
    fn only_reads_of_the_bad_range_fail() {
        let store = Faulty::bad_range(MemStore::new(vec![1; 100]), 10..20);
        let mut buf = [0; 10];
        assert!(store.read_exact_at(&mut buf, 0).is_ok());
        assert!(store.read_exact_at(&mut buf, 5).is_err());
        assert!(store.read_exact_at(&mut buf, 20).is_ok());
        let store = Faulty::truncated(MemStore::new(vec![1; 100]), 15);
        assert_eq!(
            store.read_exact_at(&mut buf, 10).unwrap_err().kind(),
            io::ErrorKind::UnexpectedEof
        );
        assert_eq!(store.size(), 100);
    }
}
