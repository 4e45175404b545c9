//! LZ4, greedy, with eight times as many entries as the library's table in four times its memory: outputs of 64 KiB hold
//! 1.5 % more and up, at three quarters of the speed and up.
//!
//! A position is kept as its lowest 16 bits, which is all that a distance of LZ4 can be made of. What is older, or was
//! indexed for an earlier cluster, turns up as a wrong place, and there the bytes say so. So nothing has to be cleared
//! between clusters, and no distance is ever too long.
//!
//! Source: LZ4 block format description (sequences, end rules).

use super::piece;
use crate::bytes::{forward, load4, load8, zeros};
use crate::{EncodeFit, EncoderSpec, Fit};

/// The table has so many entries. Unit: bits.
const HASH_LOG: u32 = 15;

/// The last bytes of a block are literals. Unit: bytes.
const LAST_LITERALS: usize = 5;

/// The last match starts so far before the end of a block. Unit: bytes.
const LAST_MATCH: usize = 12;

/// The shortest match. Unit: bytes.
const SHORTEST: usize = 4;

/// Literals are copied so many at a time where there is room.
const STEP: usize = 16;

/// After so many tries without a match the steps become longer. Unit: bits.
const SKIP_LOG: usize = 6;

/// The encoder.
pub(crate) struct Wide {
    table: Box<[u16; 1 << HASH_LOG]>,
    window: usize,
}

impl Wide {
    pub(crate) fn new(spec: &EncoderSpec) -> Self {
        Self {
            table: zeros(),
            window: spec.window,
        }
    }
}

impl EncodeFit for Wide {
    fn reset(&mut self) {
        self.table.fill(0);
    }

    fn fit(&mut self, input: &[u8], at: usize, dst: &mut [u8]) -> Fit {
        let end = at + piece(input, at, self.window).len();
        fill(&mut self.table, &input[..end], at, dst)
    }

    fn window(&self) -> usize {
        self.window
    }
}

/// Hashes the first five bytes.
#[inline(always)]
fn hash(bytes: u64) -> usize {
    ((bytes << 24).wrapping_mul(889_523_592_379) >> (64 - HASH_LOG)) as usize
}

/// Output, written from its start.
struct Out<'a> {
    dst: &'a mut [u8],
    pos: usize,
}

impl Out<'_> {
    fn left(&self) -> usize {
        self.dst.len() - self.pos
    }

    #[inline(always)]
    fn put(&mut self, byte: u8) {
        self.dst[self.pos] = byte;
        self.pos += 1;
    }

    /// Writes the extension bytes of a length from which the token took 15.
    fn extend(&mut self, mut rest: usize) {
        while rest >= 255 {
            self.put(255);
            rest -= 255;
        }
        self.put(rest as u8);
    }

    /// Writes a token with the number of literals, and the literals `data[from..to]`. Returns the token's position.
    #[inline(always)]
    fn literals(&mut self, data: &[u8], from: usize, to: usize) -> usize {
        let (token, n) = (self.pos, to - from);
        self.put((n.min(15) << 4) as u8);
        if n >= 15 {
            self.extend(n - 15);
        }
        let pos = self.pos;
        if n <= STEP && from + STEP <= data.len() && pos + STEP <= self.dst.len() {
            self.dst[pos..pos + STEP].copy_from_slice(&data[from..from + STEP]);
        } else {
            self.dst[pos..pos + n].copy_from_slice(&data[from..to]);
        }
        self.pos += n;
        token
    }
}

/// Fills `dst` with a block that decodes to `data[start..]`, or to as much of it as fits.
fn fill(table: &mut [u16; 1 << HASH_LOG], data: &[u8], start: usize, dst: &mut [u8]) -> Fit {
    if start == data.len() || dst.is_empty() {
        return Fit::NOTHING;
    }
    let mut out = Out { dst, pos: 0 };
    let mut anchor = start;
    if data.len() - start > LAST_MATCH {
        anchor = matches(table, data, start, &mut out);
    }
    // A run of so many literals takes a byte for every 255 of them.
    let left = out.left() - 1;
    let run = if left < 15 {
        left
    } else {
        left - (left + 256 - 15) / 256
    };
    let end = data.len().min(anchor + run);
    out.literals(data, anchor, end);
    match end - start {
        0 => Fit::NOTHING,
        consumed => Fit {
            consumed,
            written: out.pos,
        },
    }
}

/// Writes all sequences that have a match, as long as the last literals fit behind. Returns where the last match ends.
#[inline(always)]
fn matches(
    table: &mut [u16; 1 << HASH_LOG],
    data: &[u8],
    start: usize,
    out: &mut Out<'_>,
) -> usize {
    // Behind a shortest match there have to be so many bytes: a token, and the literals that the end rules want.
    const TAIL: usize = 1 + LAST_MATCH - SHORTEST;
    // Loads of eight bytes at or in front of `start_end` are within the data, which is longer by LAST_MATCH.
    let (start_end, match_end) = (data.len() - LAST_MATCH, data.len() - LAST_LITERALS);
    let mut anchor = start;
    // The distance to the last position with this hash, whose place `at` takes, and whether there is a match.
    let mut look = |at: usize, bytes: u64, slot: usize| {
        let distance = usize::from((at as u16).wrapping_sub(table[slot]));
        table[slot] = at as u16;
        // A place in front of the data is of no use, but the load must not go there.
        let candidate = at.saturating_sub(distance).max(start);
        let equal = load4(data, candidate) == bytes as u32;
        (distance, equal & (distance.wrapping_sub(1) < at - start))
    };
    let bytes = load8(data, start);
    look(start, bytes, hash(bytes));
    let mut next = start + 1;
    loop {
        let mut tries = 1 << SKIP_LOG;
        let mut step = 1;
        if next > start_end {
            return anchor;
        }
        let mut bytes = load8(data, next);
        let mut slot = hash(bytes);
        let (mut at, mut distance);
        loop {
            at = next;
            next += step;
            step = tries >> SKIP_LOG;
            tries += 1;
            if next > start_end {
                return anchor;
            }
            let ahead = load8(data, next);
            let ahead_slot = hash(ahead);
            let found;
            (distance, found) = look(at, bytes, slot);
            if found {
                break;
            }
            (bytes, slot) = (ahead, ahead_slot);
        }
        while at > anchor && at - distance > start && data[at - 1] == data[at - 1 - distance] {
            at -= 1;
        }
        let literals = at - anchor;
        if 1 + literals + literals / 255 + 2 + TAIL > out.left() {
            return anchor;
        }
        let mut token = out.literals(data, anchor, at);
        loop {
            // Room for token, distance and tail was seen to.
            let bytes = (distance as u16).to_le_bytes();
            out.dst[out.pos..out.pos + 2].copy_from_slice(&bytes);
            out.pos += 2;
            let mut code = forward(data, at + SHORTEST, at + SHORTEST - distance, match_end);
            let room = out.left() - 1 - LAST_LITERALS;
            if (code + 240) / 255 > room {
                // The match is cut to the extension bytes that there is room for.
                code = 14 + room * 255;
            }
            if code >= 15 {
                out.dst[token] |= 15;
                out.extend(code - 15);
            } else {
                out.dst[token] |= code as u8;
            }
            at += SHORTEST + code;
            anchor = at;
            if at > start_end || out.left() < 1 + 2 + TAIL {
                return anchor;
            }
            let behind = load8(data, at - 2);
            look(at - 2, behind, hash(behind));
            let here = load8(data, at);
            let found;
            (distance, found) = look(at, here, hash(here));
            if !found {
                break;
            }
            token = out.pos;
            out.put(0);
        }
        next = at + 1;
    }
}
