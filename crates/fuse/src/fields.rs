//! Fields of a request, read in order.

use crate::filesystem::Result;
use rustix::io::Errno;
use zerocopy::FromBytes;

/// Remaining fields of a request. Those of the operation's structure come first. Names and data follow in the same
/// buffer or in a second one.
#[derive(Clone, Copy, Debug)]
pub struct Fields<'a>(pub &'a [u8], pub &'a [u8]);

impl<'a> Fields<'a> {
    /// Returns the remaining bytes of the buffer with the next field.
    fn rest(&mut self) -> &mut &'a [u8] {
        if self.0.is_empty() {
            &mut self.1
        } else {
            &mut self.0
        }
    }

    /// Returns the number of remaining bytes in both buffers.
    pub(crate) fn len(&self) -> usize {
        self.0.len() + self.1.len()
    }

    /// Reads a structure.
    ///
    /// # Errors
    /// EINVAL if the buffer is shorter.
    pub fn structure<T: FromBytes>(&mut self) -> Result<T> {
        let rest = self.rest();
        let (value, after) = T::read_from_prefix(rest).map_err(|_| Errno::INVAL)?;
        *rest = after;
        Ok(value)
    }

    /// Reads a number of 32 bits.
    ///
    /// # Errors
    /// EINVAL if the buffer is shorter.
    pub fn u32(&mut self) -> Result<u32> {
        self.structure()
    }

    /// Reads a number of 64 bits.
    ///
    /// # Errors
    /// EINVAL if the buffer is shorter.
    pub fn u64(&mut self) -> Result<u64> {
        self.structure()
    }

    /// Reads a name and the NUL after it.
    ///
    /// # Errors
    /// EINVAL if there is no NUL, or nothing before it.
    pub fn name(&mut self) -> Result<&'a [u8]> {
        let rest = self.rest();
        let end = rest.iter().position(|b| *b == 0).filter(|end| *end > 0);
        let (name, after) = rest.split_at(end.ok_or(Errno::INVAL)?);
        *rest = &after[1..];
        Ok(name)
    }

    /// Reads data of this length.
    ///
    /// # Errors
    /// EINVAL if the buffer is shorter.
    pub fn bytes(&mut self, len: u32) -> Result<&'a [u8]> {
        let rest = self.rest();
        let (bytes, after) = rest.split_at_checked(len as usize).ok_or(Errno::INVAL)?;
        *rest = after;
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_from_one_buffer_or_two() {
        let numbers: Vec<u8> = [7u32.to_ne_bytes(), 3u32.to_ne_bytes()].concat();
        let names = b"one\0two\0xyz";
        let whole = [&numbers[..], names].concat();
        for mut f in [Fields(&whole, &[]), Fields(&numbers, names)] {
            assert_eq!((f.u32(), f.u32()), (Ok(7), Ok(3)));
            assert_eq!((f.name(), f.name()), (Ok(&b"one"[..]), Ok(&b"two"[..])));
            assert_eq!(f.bytes(4), Err(Errno::INVAL));
            assert_eq!(f.bytes(3), Ok(&b"xyz"[..]));
            assert_eq!((f.u32(), f.u64()), (Err(Errno::INVAL), Err(Errno::INVAL)));
            assert_eq!(f.name(), Err(Errno::INVAL));
        }
        // No number spans both buffers.
        assert_eq!(Fields(&numbers[..2], names).u32(), Err(Errno::INVAL));
    }
}
