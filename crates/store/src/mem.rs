//! Store over bytes in memory.

use crate::ReadAt;
use std::io;

/// Image in memory, for tests and small embedded images.
pub struct MemStore(Vec<u8>);

impl MemStore {
    /// Creates a store over `bytes`.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Self {
        Self(bytes.into())
    }

    /// Returns the bytes of the store.
    pub fn into_inner(self) -> Vec<u8> {
        self.0
    }
}

impl ReadAt for MemStore {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let from = usize::try_from(offset)
            .unwrap_or(usize::MAX)
            .min(self.0.len());
        let n = buf.len().min(self.0.len() - from);
        buf[..n].copy_from_slice(&self.0[from..from + n]);
        Ok(n)
    }

    fn size(&self) -> u64 {
        self.0.len() as u64
    }
}
