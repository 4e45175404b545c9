//! Bounds-checked reads of little-endian integers, for structures of variable length.

use crate::{Error, Result};

/// Returns `n` bytes from position `at`.
pub(crate) fn bytes<'a>(
    src: &'a [u8],
    at: usize,
    n: usize,
    what: &'static str,
) -> Result<&'a [u8]> {
    at.checked_add(n)
        .and_then(|end| src.get(at..end))
        .ok_or(Error::corrupt(what))
}

pub(crate) fn u16_at(src: &[u8], at: usize, what: &'static str) -> Result<u16> {
    match bytes(src, at, 2, what)? {
        &[a, b] => Ok(u16::from_le_bytes([a, b])),
        _ => Err(Error::corrupt(what)),
    }
}

pub(crate) fn u32_at(src: &[u8], at: usize, what: &'static str) -> Result<u32> {
    match bytes(src, at, 4, what)? {
        &[a, b, c, d] => Ok(u32::from_le_bytes([a, b, c, d])),
        _ => Err(Error::corrupt(what)),
    }
}
