//! Windowed LZ4 decoding: any part of a block's content, in memory that does not grow with the block.
//!
//! ```text
//!  0                                                  at            CAPACITY
//!  |  newer ... the last bytes that were decoded       |  oldest ...  |        17 pages, used as a ring
//!  |<------------------- 64 KiB of history, at any time ----------------->|
//! ```
//!
//! A match reaches back 65,535 bytes at most, so 16 pages of history are enough. The 17th page takes the excess of
//! copies of a fixed length. Safe code throughout.

use super::length::read_length;

/// Largest match distance, rounded up. Unit: bytes.
const HISTORY: usize = 64 << 10;

/// Space for the bytes being written. Unit: bytes.
const PAGE: usize = 4096;

/// Length of the ring. Unit: bytes.
const CAPACITY: usize = HISTORY + PAGE;

/// Number of bytes that short copies move, whatever their length. Unit: bytes.
const STEP: usize = 32;

/// Decoder with its ring. The content of the ring is meaningless between two blocks.
pub(crate) struct WindowDecoder {
    bytes: Vec<u8>,
    /// Position of the next byte, at most `CAPACITY`.
    at: usize,
    /// Number of bytes decoded.
    total: usize,
    /// Number of bytes that were copied out or are skipped. May exceed `total`.
    passed: usize,
}

impl Default for WindowDecoder {
    fn default() -> Self {
        Self {
            bytes: vec![0; CAPACITY],
            at: 0,
            total: 0,
            passed: 0,
        }
    }
}

impl WindowDecoder {
    /// Decodes bytes `[skip, skip + dst.len())` of the content of `src` and stops after them. `None` if the block is
    /// malformed or ends before that.
    pub(crate) fn decode(&mut self, src: &[u8], skip: usize, dst: &mut [u8]) -> Option<()> {
        let end = skip.checked_add(dst.len())?;
        (self.at, self.total, self.passed) = (0, 0, skip);
        let mut read = 0;
        loop {
            let token = *src.get(read)?;
            read += 1;
            let literals = read_length(src, &mut read, token >> 4)?;
            if literals > src.len() - read {
                return None;
            }
            match src.get(read..read + STEP) {
                Some(step) if literals <= STEP && self.at + STEP <= CAPACITY => {
                    self.bytes[self.at..self.at + STEP].copy_from_slice(step);
                    self.at += literals;
                    self.total += literals;
                }
                _ => self.append_literals(&src[read..read + literals], skip, dst, end),
            }
            read += literals;
            if self.total >= end {
                break;
            }
            let offset = usize::from(*src.get(read)?) | usize::from(*src.get(read + 1)?) << 8;
            read += 2;
            let matched = read_length(src, &mut read, token & 15)?.checked_add(4)?;
            if offset == 0 || offset > self.total {
                return None;
            }
            let from = self.at.checked_sub(offset);
            match from {
                Some(from) if matched <= STEP && offset >= STEP && self.at + STEP <= CAPACITY => {
                    let (old, new) = self.bytes.split_at_mut(self.at);
                    new[..STEP].copy_from_slice(&old[from..from + STEP]);
                    self.at += matched;
                    self.total += matched;
                }
                _ => self.append_match(offset, matched, skip, dst, end),
            }
            if self.total >= end {
                break;
            }
            if self.total >= self.passed + HISTORY / 2 {
                self.copy_out(skip, dst);
            }
        }
        self.copy_out(skip, dst);
        Some(())
    }

    /// Appends literals, in chunks that do not overwrite bytes not yet copied out.
    fn append_literals(&mut self, mut literals: &[u8], skip: usize, dst: &mut [u8], end: usize) {
        while !literals.is_empty() && self.total < end {
            let n = self.room(literals.len());
            self.bytes[self.at..self.at + n].copy_from_slice(&literals[..n]);
            literals = &literals[n..];
            self.advance(n, skip, dst);
        }
    }

    /// Appends `len` bytes that repeat the bytes at distance `offset`.
    fn append_match(
        &mut self,
        offset: usize,
        mut len: usize,
        skip: usize,
        dst: &mut [u8],
        end: usize,
    ) {
        while len > 0 && self.total < end {
            let mut n = self.room(len);
            let from = match self.at.checked_sub(offset) {
                Some(from) => from,
                None => self.at + CAPACITY - offset,
            };
            if from < self.at {
                // A match that overlaps itself doubles with each chunk.
                n = n.min(self.at - from);
            } else {
                n = n.min(CAPACITY - from);
            }
            self.bytes.copy_within(from..from + n, self.at);
            len -= n;
            self.advance(n, skip, dst);
        }
    }

    /// Returns how many of `len` bytes can be written at once: at least 1 if `len` is.
    fn room(&mut self, len: usize) -> usize {
        if self.at == CAPACITY {
            self.at = 0;
        }
        len.min(CAPACITY - self.at).min(PAGE)
    }

    fn advance(&mut self, n: usize, skip: usize, dst: &mut [u8]) {
        self.at += n;
        self.total += n;
        if self.total >= self.passed + HISTORY / 2 {
            self.copy_out(skip, dst);
        }
    }

    /// Copies requested bytes to the output. Must be called before the decoder advances by more than the history.
    fn copy_out(&mut self, skip: usize, dst: &mut [u8]) {
        let end = self.total.min(skip + dst.len());
        while self.passed < end {
            let back = self.total - self.passed;
            let (from, to) = match self.at.checked_sub(back) {
                Some(from) => (from, self.at),
                None => (self.at + CAPACITY - back, CAPACITY),
            };
            let n = (to - from).min(end - self.passed);
            let at = self.passed - skip;
            dst[at..at + n].copy_from_slice(&self.bytes[from..from + n]);
            self.passed += n;
        }
    }
}

#[cfg(all(test, feature = "encode"))]
mod tests {
    use super::*;
    use crate::{Algorithm, Decoder, EncoderSpec, Method};

    fn content(len: usize, seed: u64) -> Vec<u8> {
        let mut x = seed | 1;
        let mut out: Vec<u8> = Vec::with_capacity(len);
        while out.len() < len {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(99);
            let (n, back) = ((x >> 40) as usize % 90, (x >> 20) as usize % 70_000 + 1);
            match x >> 61 {
                0 => out.extend((0..n).map(|i| (x >> (i % 50)) as u8)),
                1 => out.extend(std::iter::repeat_n((x >> 33) as u8, 20 * n)),
                _ if back <= out.len() => {
                    let from = out.len() - back;
                    for i in from..from + n {
                        out.push(out[i]);
                    }
                }
                _ => out.push(7),
            }
        }
        out.truncate(len);
        out
    }

    /// Returns a block that decodes to at least part of `content`, and the length of its content.
    fn block(content: &[u8]) -> (Vec<u8>, usize) {
        let spec = EncoderSpec::new(Method::Lz4, 1 << 18);
        let mut encoder = spec.build().unwrap();
        let mut out = vec![0; 1 << 18];
        encoder.reset();
        let fit = encoder.fit(content, 0, &mut out);
        out.truncate(fit.written);
        (out, fit.consumed)
    }

    #[test]
    fn every_range_equals_the_library() {
        let mut window = WindowDecoder::default();
        for seed in 0..6 {
            let content = content(400_000, seed);
            let (block, len) = block(&content);
            assert!(len > 2 * CAPACITY, "goes around more than once: {len}");
            let mut whole = vec![0; len];
            Decoder::new()
                .decode(Algorithm::Lz4, &block, &mut whole)
                .unwrap();
            for (skip, n) in [
                (0, 1),
                (0, len),
                (1, len - 1),
                (len - 1, 1),
                (65_535, 4096),
                (65_536, 70_000),
                (CAPACITY, CAPACITY),
                (100_001, 12_345),
                (len, 0),
            ] {
                let mut part = vec![0xAA; n];
                assert_eq!(window.decode(&block, skip, &mut part), Some(()));
                assert!(part == whole[skip..skip + n], "{skip} + {n} of seed {seed}");
            }
            assert_eq!(window.decode(&block, len, &mut [0]), None, "past the end");
        }
    }

    #[test]
    fn damaged_blocks_are_rejected_or_decode_like_the_library() {
        let content = content(90_000, 5);
        let (block, len) = block(&content);
        let mut window = WindowDecoder::default();
        for end in (0..block.len()).step_by(97) {
            assert_eq!(window.decode(&block[..end], len - 1, &mut [0]), None);
        }
        let (mut refused, mut same) = (0, 0);
        for at in (0..block.len()).step_by(31) {
            let mut bad = block.clone();
            bad[at] ^= 1 << (at % 8);
            let (mut ours, mut theirs) = (vec![0; len], vec![0; len]);
            let good = Decoder::new()
                .decode_prefix(Algorithm::Lz4, &bad, &mut theirs)
                .is_ok();
            match window.decode(&bad, 0, &mut ours) {
                None => {
                    assert!(!good, "byte {at}: the library decodes it");
                    refused += 1;
                }
                // The library checks end rules that decoding does not need.
                Some(()) if good => {
                    assert!(ours == theirs, "byte {at}");
                    same += 1;
                }
                Some(()) => {}
            }
        }
        assert!(refused > 0 && same > 0, "both happen: {refused}, {same}");
    }
}
