//! Decoder of LZO1X, from the description of the stream in the kernel's Documentation/staging/lzo.rst.
//!
//! ```text
//! first byte  18..255           copy 1..238 literals
//! 0000LLLL                      state 0: copy 4 literals or more
//! 0000DDSS D                    state 1..3: copy 2 bytes from within 1 KiB; state 4: 3 bytes from 2 to 3 KiB
//! 0001DLLL DDDDDDSS DDDDDDDD    copy from 16 to 48 KiB; distance 16 KiB is the end
//! 001LLLLL DDDDDDSS DDDDDDDD    copy from within 16 KiB
//! 01LDDDSS D                    copy 3 or 4 bytes from within 2 KiB
//! 1LLDDDSS D                    copy 5 to 8 bytes from within 2 KiB
//! ```
//!
//! S is the number of literals that follow a copy, and the next state. State 4 follows 4 literals or more.

/// Bytes that are read, and output that is written.
struct Streams<'a> {
    src: &'a [u8],
    dst: &'a mut [u8],
    /// Number of bytes written.
    len: usize,
}

impl Streams<'_> {
    fn byte(&mut self) -> Option<usize> {
        let (first, rest) = self.src.split_first()?;
        self.src = rest;
        Some((*first).into())
    }

    /// Returns a length: that in the instruction, or if it is zero, `max` and what follows: zero bytes of 255 each, and another one.
    fn length(&mut self, in_instruction: usize, max: usize) -> Option<usize> {
        if in_instruction > 0 {
            return Some(in_instruction);
        }
        let mut len = max;
        loop {
            match self.byte()? {
                // Bounded by the input.
                0 => len += 255,
                last => return Some(len + last),
            }
        }
    }

    fn literals(&mut self, n: usize) -> Option<()> {
        let (literals, rest) = self.src.split_at_checked(n)?;
        let end = self.len.checked_add(n)?;
        self.dst.get_mut(self.len..end)?.copy_from_slice(literals);
        (self.src, self.len) = (rest, end);
        Some(())
    }

    fn copy(&mut self, distance: usize, n: usize) -> Option<()> {
        let from = self.len.checked_sub(distance)?;
        let end = self
            .len
            .checked_add(n)
            .filter(|end| *end <= self.dst.len())?;
        // The source may overlap the output.
        for at in 0..n {
            self.dst[self.len + at] = self.dst[from + at];
        }
        self.len = end;
        Some(())
    }
}

/// Decodes a stream to at most `dst.len()` bytes. Returns their number; `None` for a stream that is malformed or longer.
pub(crate) fn decode(src: &[u8], dst: &mut [u8]) -> Option<usize> {
    let mut streams = Streams { src, dst, len: 0 };
    let s = &mut streams;
    let mut state = 0;
    if let Some(first @ 18..) = s.src.first() {
        let literals = usize::from(*first) - 17;
        s.byte()?;
        s.literals(literals)?;
        state = literals.min(4);
    }
    loop {
        let code = s.byte()?;
        let (distance, len, literals) = match code {
            0..16 if state == 0 => {
                let len = 3 + s.length(code, 15)?;
                s.literals(len)?;
                state = 4;
                continue;
            }
            0..16 => {
                let (far, len) = if state == 4 { (2048, 3) } else { (0, 2) };
                (far + (s.byte()? << 2) + (code >> 2) + 1, len, code & 3)
            }
            16..32 => {
                let len = 2 + s.length(code & 7, 7)?;
                let low = s.byte()?;
                let distance = ((code & 8) << 11) + (s.byte()? << 6) + (low >> 2);
                if distance == 0 {
                    return s.src.is_empty().then_some(s.len);
                }
                (16384 + distance, len, low & 3)
            }
            32..64 => {
                let len = 2 + s.length(code & 31, 31)?;
                let low = s.byte()?;
                ((s.byte()? << 6) + (low >> 2) + 1, len, low & 3)
            }
            64..128 => {
                let distance = (s.byte()? << 3) + ((code >> 2) & 7) + 1;
                (distance, 3 + ((code >> 5) & 1), code & 3)
            }
            _ => {
                let distance = (s.byte()? << 3) + ((code >> 2) & 7) + 1;
                (distance, 5 + ((code >> 5) & 3), code & 3)
            }
        };
        s.copy(distance, len)?;
        s.literals(literals)?;
        state = literals;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_and_copies_are_decoded() {
        let mut dst = [0; 16];
        // Four literals, then "01" with one byte of length 4 from distance 4, then the end.
        let src = [21, b'a', b'b', b'c', b'd', 0b0110_1100, 0, 17, 0, 0];
        assert_eq!(decode(&src, &mut dst), Some(8));
        assert_eq!(&dst[..8], b"abcdabcd");
    }

    #[test]
    fn streams_that_are_cut_or_lead_outside_are_refused() {
        let src = [21, b'a', b'b', b'c', b'd', 0b0110_1100, 0, 17, 0, 0];
        for len in 0..src.len() {
            assert_eq!(decode(&src[..len], &mut [0; 16]), None, "{len}");
        }
        assert_eq!(decode(&src, &mut [0; 7]), None);
        let before = [21, b'a', b'b', b'c', b'd', 0b0111_0000, 0, 17, 0, 0];
        assert_eq!(decode(&before, &mut [0; 16]), None);
    }
}
