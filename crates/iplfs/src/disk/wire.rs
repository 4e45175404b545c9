//! Cursors over the bytes of one structure.
//!
//! Positions are chosen by this code and never by the bytes read. Running off the end is a bug here, not damage of a
//! volume.

use crate::disk::address::{BLOCK_SIZE, Block};

/// Reader of consecutive little-endian fields.
pub(crate) struct Get<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Get<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    pub(crate) fn bytes(&mut self, n: usize) -> &'a [u8] {
        let field = &self.bytes[self.at..self.at + n];
        self.at += n;
        field
    }

    pub(crate) fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut out = [0; N];
        out.copy_from_slice(self.bytes(N));
        out
    }

    pub(crate) fn u8(&mut self) -> u8 {
        self.array::<1>()[0]
    }

    pub(crate) fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    pub(crate) fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    pub(crate) fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    pub(crate) fn i64(&mut self) -> i64 {
        i64::from_le_bytes(self.array())
    }
}

/// Writer of consecutive little-endian fields.
pub(crate) struct Put<'a> {
    bytes: &'a mut [u8],
    at: usize,
}

impl<'a> Put<'a> {
    pub(crate) fn new(bytes: &'a mut [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    pub(crate) fn bytes(&mut self, field: &[u8]) {
        self.bytes[self.at..self.at + field.len()].copy_from_slice(field);
        self.at += field.len();
    }

    pub(crate) fn u8(&mut self, v: u8) {
        self.bytes(&[v]);
    }

    pub(crate) fn u16(&mut self, v: u16) {
        self.bytes(&v.to_le_bytes());
    }

    pub(crate) fn u32(&mut self, v: u32) {
        self.bytes(&v.to_le_bytes());
    }

    pub(crate) fn u64(&mut self, v: u64) {
        self.bytes(&v.to_le_bytes());
    }

    pub(crate) fn i64(&mut self, v: i64) {
        self.bytes(&v.to_le_bytes());
    }
}

/// Offset of the checksum in a block, which covers all bytes before it.
const SUM_AT: usize = BLOCK_SIZE - 4;

/// Stores the CRC32C of a block in its last four bytes.
pub(crate) fn seal(block: &mut Block) {
    let sum = crc32c::crc32c(&block[..SUM_AT]);
    block[SUM_AT..].copy_from_slice(&sum.to_le_bytes());
}

/// Returns whether the last four bytes of a block are the CRC32C of the others.
pub(crate) fn sealed(block: &Block) -> bool {
    crc32c::crc32c(&block[..SUM_AT]).to_le_bytes() == block[SUM_AT..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flipped_bit_breaks_the_seal() {
        let mut block = [0x5a; BLOCK_SIZE];
        seal(&mut block);
        assert!(sealed(&block));
        for bit in 0..BLOCK_SIZE * 8 {
            block[bit / 8] ^= 1 << (bit % 8);
            assert!(!sealed(&block), "bit {bit}");
            block[bit / 8] ^= 1 << (bit % 8);
        }
        assert!(!sealed(&[0; BLOCK_SIZE]) || crc32c::crc32c(&[0; SUM_AT]) == 0);
    }
}
