//! Lengths of literals and matches as an LZ4 block stores them.

/// Reads the extension bytes at `read` of a length whose four bits in the token are `nibble`, and returns the length.
/// `None` if the block ends before them.
pub(super) fn read_length(src: &[u8], read: &mut usize, nibble: u8) -> Option<usize> {
    let mut n = usize::from(nibble);
    if nibble == 15 {
        loop {
            let byte = *src.get(*read)?;
            *read += 1;
            n += usize::from(byte);
            if byte != 255 {
                break;
            }
        }
    }
    Some(n)
}
