//! In-place decodability of LZ4 blocks, by walking their sequences without the data.
//!
//! ```text
//!  output buffer, its end rounded up to 4 KiB
//!  |<------------------- dst_len ------------------->|<- slack ->|
//!  |  written so far  |w            r|  not yet read             |
//!                      ^ write        ^ read: the block is right-aligned at the end of the buffer
//! ```
//!
//! A block can be decoded in place if no byte at or past the read position is written before it is read.

use super::length::read_length;

/// Granularity to which the end of an output buffer is rounded up. Unit: bytes.
const PAGE: usize = 4096;

/// Returns true if the block `src`, which decodes to `dst_len` bytes, can be decoded in the buffer that holds it. The
/// buffer has `dst_len` bytes rounded up to whole 4 KiB pages, and `src` lies at its end.
///
/// The walk is exact to the byte: it models a decoder that writes nothing but output. A decoder that copies in larger
/// steps needs its own margin on top. Returns false for a malformed block and for one that decodes to another length.
#[must_use]
pub fn lz4_decodes_in_place(src: &[u8], dst_len: usize) -> bool {
    walk(src, dst_len).unwrap_or(false)
}

/// Walks the block. `None` if it is malformed.
fn walk(src: &[u8], dst_len: usize) -> Option<bool> {
    let Some(base) = dst_len.next_multiple_of(PAGE).checked_sub(src.len()) else {
        return Some(false);
    };
    let (mut read, mut write) = (0, 0usize);
    loop {
        let token = *src.get(read)?;
        read += 1;
        let literals = read_length(src, &mut read, token >> 4)?;
        // A forward copy of literals is safe unless it starts past its source.
        if write > base + read {
            return Some(false);
        }
        read = read
            .checked_add(literals)
            .filter(|&read| read <= src.len())?;
        write += literals;
        if write > dst_len {
            return None;
        }
        if read == src.len() {
            return (write == dst_len).then_some(true);
        }
        let offset = usize::from(*src.get(read)?) | usize::from(*src.get(read + 1)?) << 8;
        read += 2;
        let matched = read_length(src, &mut read, token & 15)? + 4;
        if offset == 0 || offset > write {
            return None;
        }
        write = write
            .checked_add(matched)
            .filter(|&write| write <= dst_len)?;
        if write > base + read {
            return Some(false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a block that produces 8192 bytes from one literal: 1 + 1 + 2 + 33 + 6 bytes.
    fn zeros() -> Vec<u8> {
        let mut block = vec![0x1f, 0, 1, 0];
        let extension = 8192 - 1 - 5 - 4 - 15;
        block.extend(vec![255; extension / 255]);
        block.push((extension % 255) as u8);
        block.extend([0x50, 0, 0, 0, 0, 0]);
        block
    }

    #[test]
    fn a_long_match_decodes_in_place_only_with_enough_slack() {
        // The match ends 5 bytes before the end of the output; the last 6 bytes of the block are unread.
        assert!(!lz4_decodes_in_place(&zeros(), 8192));
        let mut longer = zeros();
        let last = longer.len() - 6;
        longer[last] = 0x60;
        longer.push(0);
        assert!(lz4_decodes_in_place(&longer, 8193), "4095 bytes of slack");
    }

    #[test]
    fn a_block_of_literals_decodes_in_place() {
        let mut block = vec![0xf0, 5];
        block.extend([7; 20]);
        assert!(lz4_decodes_in_place(&block, 20));
    }

    #[test]
    fn invalid_blocks_and_wrong_lengths_are_rejected() {
        let block = zeros();
        for end in 0..block.len() {
            assert!(!lz4_decodes_in_place(&block[..end], 8193), "cut at {end}");
        }
        assert!(!lz4_decodes_in_place(&block, 8191));
        assert!(
            !lz4_decodes_in_place(&[0x10, 1, 2, 0], 5),
            "match reaches before the start"
        );
        assert!(
            !lz4_decodes_in_place(&[0x10, 1, 0, 0], 5),
            "match of distance zero"
        );
    }
}
