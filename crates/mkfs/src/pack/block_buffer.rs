//! A buffer that fills from the front and is used again without being cleared.

/// A buffer grows by multiples of this. Unit: bytes.
const STEP: usize = 256 << 10;

/// Output of a job: whole blocks, `len` bytes of them valid.
#[derive(Debug, Default)]
pub(crate) struct BlockBuffer {
    buf: Vec<u8>,
    len: usize,
}

impl BlockBuffer {
    /// Bytes that are valid.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The valid bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.buf[..self.len]
    }

    /// Forgets everything behind the first `len` bytes.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// `n` bytes behind the valid ones, with whatever was there before. [`commit`](Self::commit) makes them valid.
    pub(crate) fn spare(&mut self, n: usize) -> &mut [u8] {
        let end = self.len + n;
        if self.buf.len() < end {
            // A little more, so that few calls grow it, and not much more: what is zeroed becomes memory in use.
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
