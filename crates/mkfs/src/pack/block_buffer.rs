//! Output buffer that is reused without being cleared.

/// Buffers grow by multiples of this number of bytes.
const STEP: usize = 256 << 10;

/// Output of a job: whole blocks, of which the first `len` bytes are valid.
#[derive(Debug, Default)]
pub(crate) struct BlockBuffer {
    buf: Vec<u8>,
    len: usize,
}

impl BlockBuffer {
    /// Returns the number of valid bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns the valid bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.buf[..self.len]
    }

    /// Drops everything after the first `len` bytes.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Returns `n` bytes after the valid ones, with undefined content. [`commit`](Self::commit) makes them valid.
    pub(crate) fn spare(&mut self, n: usize) -> &mut [u8] {
        let end = self.len + n;
        if self.buf.len() < end {
            // The step keeps reallocations rare, and is small because zeroed bytes become resident memory.
            self.buf.resize(end.next_multiple_of(STEP), 0);
        }
        &mut self.buf[self.len..end]
    }

    /// Makes `n` spare bytes valid.
    pub(crate) fn commit(&mut self, n: usize) {
        debug_assert!(self.len + n <= self.buf.len());
        self.len += n;
    }

    /// Appends bytes and pads with zeros to a multiple of `block`.
    pub(crate) fn extend_padded(&mut self, bytes: &[u8], block: usize) {
        let padded = bytes.len().next_multiple_of(block);
        let spare = self.spare(padded);
        spare[..bytes.len()].copy_from_slice(bytes);
        spare[bytes.len()..].fill(0);
        self.commit(padded);
    }
}
