//! Fields of a request, read in order.

use crate::filesystem::Result;
use rustix::io::Errno;
use zerocopy::{FromBytes, Immutable, Unaligned};

/// Remaining fields of a request. Those of the operation's structure come first. Names and data follow in the same
/// buffer or in a second one. A field that is cut short is EINVAL.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fields<'a>(pub(crate) &'a [u8], pub(crate) &'a [u8]);

impl<'a> Fields<'a> {
    /// Returns the remaining bytes of the buffer with the next field.
    fn rest(&mut self) -> &mut &'a [u8] {
        if self.0.is_empty() {
            &mut self.1
        } else {
            &mut self.0
        }
    }

    /// Reads a structure or a number.
    pub(crate) fn structure<T: FromBytes>(&mut self) -> Result<T> {
        let rest = self.rest();
        let (value, after) = T::read_from_prefix(rest).map_err(|_| Errno::INVAL)?;
        *rest = after;
        Ok(value)
    }

    /// Reads a name of at least one byte, and the NUL after it.
    pub(crate) fn name(&mut self) -> Result<&'a [u8]> {
        let rest = self.rest();
        let end = rest.iter().position(|b| *b == 0).filter(|end| *end > 0);
        let (name, after) = rest.split_at(end.ok_or(Errno::INVAL)?);
        *rest = &after[1..];
        Ok(name)
    }

    /// Reads data of this length.
    pub(crate) fn bytes(&mut self, len: u32) -> Result<&'a [u8]> {
        let rest = self.rest();
        let (bytes, after) = rest.split_at_checked(len as usize).ok_or(Errno::INVAL)?;
        *rest = after;
        Ok(bytes)
    }

    /// Reads `count` structures that may lie at any address.
    pub(crate) fn list<T: FromBytes + Immutable + Unaligned>(
        &mut self,
        count: u32,
    ) -> Result<&'a [T]> {
        let rest = self.rest();
        let list = <[T]>::ref_from_prefix_with_elems(rest, count as usize);
        let (list, after) = list.map_err(|_| Errno::INVAL)?;
        *rest = after;
        Ok(list)
    }

    /// Reads all remaining data.
    pub(crate) fn bytes_left(&mut self) -> &'a [u8] {
        std::mem::take(self.rest())
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
            assert_eq!(f.structure(), Ok([7u32, 3]));
            assert_eq!((f.name(), f.name()), (Ok(&b"one"[..]), Ok(&b"two"[..])));
            assert_eq!(f.bytes(4), Err(Errno::INVAL));
            assert_eq!({ f }.bytes_left(), b"xyz");
            assert_eq!(f.bytes(3), Ok(&b"xyz"[..]));
            assert_eq!(f.structure::<u32>(), Err(Errno::INVAL));
            assert_eq!(f.name(), Err(Errno::INVAL));
        }
        // No number spans both buffers.
        assert_eq!(
            Fields(&numbers[..2], names).structure::<u32>(),
            Err(Errno::INVAL)
        );
    }
}
