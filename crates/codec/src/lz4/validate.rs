//! Validation of LZ4 blocks by walking their sequences without writing.
//!
//! A block has no checksum. Its validity and the length of its content depend only on its lengths and distances.
//!
//! Invariant: the decoder accepts every block that is accepted here. Some blocks that no encoder writes are left to
//! the decoder.
//!
//! Source: LZ4 block format description (sequences, end rules).

use crate::bytes::{load2, load4};

/// Fewest literals at the end of a block. Unit: bytes.
const LAST_LITERALS: usize = 5;

/// Fewest bytes from the start of the last match to the end of the content. Unit: bytes.
const LAST_MATCH: usize = 12;

/// Length of the shortest match. Unit: bytes.
const SHORTEST: usize = 4;

/// Fewest bytes after literals that are not the last: a distance, a token and the last literals. Unit: bytes.
const SEQUENCE: usize = 2 + 1 + LAST_LITERALS;

/// Position of a walk through a block.
struct BlockWalk<'a> {
    src: &'a [u8],
    /// Position of the next token, which is followed by at least one byte.
    read: usize,
    /// Number of bytes that a decoder would have written.
    write: usize,
    /// Largest end of literals that are not the last, in the block and in its content.
    read_end: usize,
    write_end: usize,
    /// True once a distance is 0 or reaches before the output.
    bad: bool,
}

impl<'a> BlockWalk<'a> {
    fn new(src: &'a [u8], len: usize) -> Option<Self> {
        Some(BlockWalk {
            src,
            read: 0,
            write: 0,
            read_end: src.len().checked_sub(SEQUENCE)?,
            write_end: len.checked_sub(LAST_MATCH)?,
            bad: false,
        })
    }

    /// Walks one sequence. At the end, `Some` states whether the block decodes to the expected length.
    ///
    /// A length and its first extension byte are read unconditionally: lengths are hard to predict, and a branch for
    /// each would cost more than everything else.
    #[inline(always)]
    fn walk_sequence(&mut self) -> Option<bool> {
        let pair = usize::from(load2(self.src, self.read));
        let token = pair & 0xFF;
        let mut literals = token >> 4;
        let long = usize::from(literals == 15);
        let more = (pair >> 8) & long.wrapping_neg();
        let mut at = self.read + 1 + long;
        literals += more;
        if more == 255 {
            let Some(n) = extension(self.src, &mut at) else {
                return Some(false);
            };
            literals += n;
        }
        self.read = at + literals;
        self.write += literals;
        let left = self.read_end.wrapping_sub(self.read) | self.write_end.wrapping_sub(self.write);
        if (left as isize) < 0 {
            let ends = self.read == self.src.len() && self.write == self.write_end + LAST_MATCH;
            let alone = literals == self.write;
            return Some(ends && !self.bad && (alone || literals >= LAST_LITERALS));
        }
        // In bounds: at least SEQUENCE bytes follow.
        let word = load4(self.src, self.read) as usize;
        let distance = word & 0xFFFF;
        let matched = token & 15;
        let long = usize::from(matched == 15);
        let more = (word >> 16 & 0xFF) & long.wrapping_neg();
        self.bad |= distance.wrapping_sub(1) >= self.write;
        self.read += 2 + long;
        self.write += matched + SHORTEST + more;
        if more == 255 {
            let Some(n) = extension(self.src, &mut self.read) else {
                return Some(false);
            };
            self.write += n;
            if self.read + 2 > self.src.len() {
                return Some(false);
            }
        }
        None
    }

    /// Walks one sequence, and continues with the next block at the end.
    #[inline(always)]
    fn advance(&mut self, next: &mut impl FnMut() -> Option<Option<Self>>) -> WalkState {
        match self.walk_sequence() {
            None => WalkState::Next,
            Some(false) => WalkState::Malformed,
            Some(true) => match next() {
                None => WalkState::Last,
                Some(None) => WalkState::Malformed,
                Some(Some(lane)) => {
                    *self = lane;
                    WalkState::Next
                }
            },
        }
    }

    /// Walks to the end of the block.
    fn rest(mut self) -> bool {
        loop {
            if let Some(end) = self.walk_sequence() {
                return end;
            }
        }
    }
}

/// Returns true if all LZ4 blocks decode to the given lengths. Nothing is written, which saves a third of the time.
///
/// If true, [`Decoder::decode`](crate::Decoder::decode) succeeds for all blocks. If false, one of them is malformed, or
/// is of a kind that no encoder writes and only the decoder can judge.
#[must_use]
pub fn lz4_validate<'a>(blocks: impl IntoIterator<Item = (&'a [u8], usize)>) -> bool {
    // Each step of a walk waits for the one before it: two walks in turns hide half of that latency.
    let mut blocks = blocks.into_iter();
    let mut next = || blocks.next().map(|(src, len)| BlockWalk::new(src, len));
    let (mut a, mut b) = match (next(), next()) {
        (None, _) => return true,
        (Some(a), None) => return a.is_some_and(BlockWalk::rest),
        (Some(Some(a)), Some(Some(b))) => (a, b),
        _ => return false,
    };
    loop {
        match a.advance(&mut next) {
            WalkState::Next => {}
            WalkState::Malformed => return false,
            WalkState::Last => return b.rest(),
        }
        match b.advance(&mut next) {
            WalkState::Next => {}
            WalkState::Malformed => return false,
            WalkState::Last => return a.rest(),
        }
    }
}

/// Result of walking one sequence.
enum WalkState {
    /// The walk of the block continues.
    Next,
    /// A block does not decode to its length.
    Malformed,
    /// All blocks have been assigned.
    Last,
}

/// Sums the extension bytes of a length after the first. The sum is at most 255 for each byte of `src`.
#[cold]
fn extension(src: &[u8], read: &mut usize) -> Option<usize> {
    let mut n = 0;
    loop {
        let byte = *src.get(*read)?;
        *read += 1;
        n += usize::from(byte);
        if byte != 255 {
            return Some(n);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lz4::decode;

    fn decodes(src: &[u8], len: usize) -> bool {
        decode(src, &mut vec![0; len]) == Some(len)
    }

    /// Returns a block of one literal, a match of 14 + 4 + `more` bytes at `distance`, and `last` literals.
    fn block(distance: u16, more: usize, last: usize) -> (Vec<u8>, usize) {
        let mut src = vec![0x1F, b'x'];
        src.extend(distance.to_le_bytes());
        src.extend(vec![255; more / 255]);
        src.push((more % 255) as u8);
        src.push((last.min(15) << 4) as u8);
        if last >= 15 {
            src.extend(vec![255; (last - 15) / 255]);
            src.push(((last - 15) % 255) as u8);
        }
        src.extend((0..last).map(|i| i as u8));
        (src, 1 + 19 + more + last)
    }

    #[test]
    fn blocks_of_all_lengths_are_accepted_in_any_number() {
        let good = block(1, 300, 20);
        for more in [0, 1, 254, 255, 256, 509, 510, 511, 70_000] {
            for last in [5, 6, 14, 15, 16, 269, 270, 271, 525] {
                let (src, len) = block(1, more, last);
                assert!(decodes(&src, len));
                for n in 1..5 {
                    let blocks = (0..n)
                        .map(|_| (&src[..], len))
                        .chain([(&good.0[..], good.1)]);
                    assert!(lz4_validate(blocks), "{n} times {more} {last}");
                }
            }
        }
    }

    #[test]
    fn invalid_blocks_and_wrong_lengths_are_rejected() {
        let good = block(1, 300, 20);
        let refused = |src: &[u8], len: usize, what: &str| {
            for at in 0..5 {
                let mut blocks = vec![(&good.0[..], good.1); 4];
                blocks.insert(at, (src, len));
                assert!(!lz4_validate(blocks), "{what}");
            }
            assert!(!lz4_validate([(src, len)]), "{what}");
        };
        for cut in 0..good.0.len() {
            refused(&good.0[..cut], good.1, "cut");
        }
        refused(&good.0, good.1 + 1, "longer");
        refused(&good.0, good.1 - 1, "shorter");
        refused(&[&good.0[..], &[0]].concat(), good.1, "a byte left over");
        refused(&block(2, 300, 20).0, good.1, "in front of the output");
        refused(&block(0, 300, 20).0, good.1, "distance 0");
        let (src, len) = block(1, 300, 4);
        refused(&src, len, "four last literals");
    }

    /// A walk that accepts more than the decoder would report a damaged image as sound.
    #[test]
    fn accepted_blocks_decode_even_if_damaged() {
        let mut state = 1u64;
        let mut random = move |n: usize| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) as usize % n
        };
        let other = block(1, 300, 20);
        let (mut accepted, mut refused) = (0, 0);
        for round in 0..60_000 {
            let (mut src, mut len) = block(1, random(600), 5 + random(40));
            // A second match before the last literals.
            if round % 2 == 0 {
                let tail = src.len() - random(5).min(src.len());
                src.truncate(tail);
                src.extend([0x40 | random(16) as u8, 1, 2, 3, 4, 1 + random(9) as u8, 0]);
                src.extend([random(256) as u8, 0xF0, random(12) as u8]);
                src.extend((0..15 + random(12)).map(|i| i as u8));
            }
            for _ in 0..random(3) {
                let at = random(src.len());
                src[at] = random(256) as u8;
            }
            // The actual length of the content, if the block is valid: otherwise almost nothing would be accepted.
            let mut room = vec![0; 1 << 17];
            let found = crate::lz4::decode(&src, &mut room);
            len = found.unwrap_or(len) + random(20) / 19;
            if lz4_validate([(&src[..], len), (&other.0, other.1)]) {
                assert!(decodes(&src, len), "round {round}: {src:?} to {len}");
                accepted += 1;
            } else {
                refused += 1;
            }
        }
        assert!(accepted > 1000 && refused > 1000, "{accepted} {refused}");
    }
}
