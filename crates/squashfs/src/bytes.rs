//! Little-endian numbers in structures.

/// Structure of `N` bytes whose fields are read by their constant offsets.
pub(crate) struct Fields<const N: usize>(pub(crate) [u8; N]);

impl<const N: usize> Fields<N> {
    fn array<const M: usize>(&self, at: usize) -> [u8; M] {
        let bytes = self.0[at..].first_chunk();
        *bytes.expect("the field is within the structure")
    }

    pub(crate) fn u16(&self, at: usize) -> u16 {
        u16::from_le_bytes(self.array(at))
    }

    pub(crate) fn u32(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.array(at))
    }

    pub(crate) fn u64(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.array(at))
    }
}
