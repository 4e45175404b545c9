//! Greedy LZ4 encoder: one position per hash, and the first match found is taken.
//!
//! ```text
//!  in_steps   while there is space at both ends: copies of 16 bytes and comparisons of 8, checked against that space only
//!  with_care  the last sequences, byte by byte
//!  the rest   literals
//! ```
//!
//! * A cluster begins with an empty table. Its positions count from the cluster's start and are stored as their
//!   lowest 16 bits, which is enough for a distance of LZ4. Every table entry therefore yields a distance within the
//!   cluster, and only the bytes there tell whether it is a match: one unpredictable branch instead of two.
//! * In the cluster's first 64 KiB the entry is the position itself, and the bytes there are loaded at once. The
//!   latency of that branch dominates the time per sequence.
//! * The extensions of a match forward and backward are computed independently of each other.
//! * A search ends where its literals would fill the output. Incompressible input costs a scan of one output's worth
//!   of bytes, not of the whole input.
//!
//! Source: LZ4 block format description (sequences, end rules).

use super::truncate::trim_tail;
use crate::bytes::{byte, load4, load8, load16, match_len, match_len_backward, zeroed};
use crate::encode::bounded_input;
use crate::{Encoder, EncoderSpec, Fit, TailFit, Trim};

/// Fewest literals at the end of a block. Unit: bytes.
const LAST_LITERALS: usize = 5;

/// Smallest length that needs extension bytes after the token.
const LONG: usize = 15;

/// Fewest bytes from the start of the last match to the end of a block. Unit: bytes.
const LAST_MATCH: usize = 12;

/// Length of the shortest match. Unit: bytes.
const SHORTEST: usize = 4;

/// Fewest bytes after a shortest match: a token, and the literals that the end rules require. Unit: bytes.
const TAIL: usize = 1 + LAST_MATCH - SHORTEST;

/// Number of bytes copied or compared at a time. Unit: bytes.
const STEP: usize = 16;

/// Space at either end below which a sequence is written byte by byte. Unit: bytes.
///
/// Of the output it covers a token, an excess step of literals, a distance, a byte of the match's length and the
/// tail. Of the input it covers the shortest match, a step past the position, and the last literals.
const ROOM: usize = 48;

/// Largest position that the table stores completely. Unit: bytes.
const NEAR: usize = u16::MAX as usize;

/// Number of attempts without a match after which the search step grows. Unit: bits.
const SKIP_LOG: usize = 6;

/// Fills the output with a block that decodes to `data`, or to as much of it as fits.
type FillFn<const N: usize> = fn(&mut [u16; N], &[u8], &mut [u8]) -> Fit;

/// Encoder with a table of `N` entries, a power of two.
pub(crate) struct GreedyEncoder<const N: usize> {
    table: Box<[u16; N]>,
    input_max: usize,
    fill: FillFn<N>,
}

impl<const N: usize> GreedyEncoder<N> {
    pub(crate) fn new(spec: &EncoderSpec) -> Self {
        Self::with_input_max(spec.input_max)
    }

    /// Creates an encoder whose outputs hold at most `input_max` bytes of input.
    pub(crate) fn with_input_max(input_max: usize) -> Self {
        Self {
            table: zeroed(),
            input_max,
            fill: best_fill(),
        }
    }
}

impl<const N: usize> Encoder for GreedyEncoder<N> {
    fn reset(&mut self) {}

    fn fit(&mut self, input: &[u8], at: usize, dst: &mut [u8]) -> Fit {
        let data = bounded_input(input, at, self.input_max);
        if data.is_empty() || dst.is_empty() {
            return Fit::NOTHING;
        }
        self.table.fill(0);
        (self.fill)(&mut self.table, data, dst)
    }

    fn fit_tail(&mut self, input: &[u8], at: usize, dst: &mut [u8], trim: &Trim) -> TailFit {
        let fit = self.fit(input, at, dst);
        trim_tail(&input[at..], fit, dst, trim)
    }

    fn input_max(&self) -> usize {
        self.input_max
    }
}

/// Returns the variant for this machine: the same code, compiled for its instruction set.
fn best_fill<const N: usize>() -> FillFn<N> {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("bmi1")
        && std::arch::is_x86_feature_detected!("bmi2")
        && std::arch::is_x86_feature_detected!("lzcnt")
    {
        // SAFETY: the features were detected a line above.
        return |table, data, dst| unsafe { fill_bmi(table, data, dst) };
    }
    fill_portable
}

fn fill_portable<const N: usize>(table: &mut [u16; N], data: &[u8], dst: &mut [u8]) -> Fit {
    fill(table, data, dst)
}

/// Runs [`fill`] compiled for BMI instructions.
///
/// # Safety
/// The machine has these features.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "bmi1,bmi2,lzcnt")]
unsafe fn fill_bmi<const N: usize>(table: &mut [u16; N], data: &[u8], dst: &mut [u8]) -> Fit {
    fill(table, data, dst)
}

#[inline(always)]
fn fill<const N: usize>(table: &mut [u16; N], data: &[u8], dst: &mut [u8]) -> Fit {
    let out = &mut BlockWriter { dst, pos: 0 };
    let mut anchor = 0;
    if data.len() > 2 * ROOM && out.left() > 2 * ROOM {
        anchor = in_steps(table, data, out);
    }
    if data.len() > LAST_MATCH {
        anchor = with_care(table, data, anchor, out);
    }
    // A run of literals takes one extra byte per 255 of them.
    let left = out.left() - 1;
    let run = if left < LONG {
        left
    } else {
        left - (left + 256 - LONG) / 256
    };
    let end = data.len().min(anchor + run);
    let token = out.token();
    out.literals(token, data, anchor, end);
    match end {
        0 => Fit::NOTHING,
        consumed => Fit {
            consumed,
            written: out.pos,
        },
    }
}

/// Writes sequences as long as there is [`ROOM`]. Returns the end of the last match.
#[inline(always)]
fn in_steps<const N: usize>(table: &mut [u16; N], data: &[u8], out: &mut BlockWriter<'_>) -> usize {
    // A position at or before `limit` has ROOM bytes after it.
    let limit = data.len() - ROOM;
    let (mut anchor, mut at) = (0, 1);
    loop {
        let room = out.left().saturating_sub(ROOM);
        let stop = limit.min(anchor + room);
        if at > stop {
            return anchor;
        }
        let Some(distance) = search(table, data, &mut at, stop) else {
            return anchor;
        };
        // Positions in the table are before `at`, and a distance is at most what lies between.
        let most = (at - anchor).min(at - distance);
        // Compares the bytes before both positions one by one: most often none is equal.
        let mut back = 0;
        while back < most && byte(data, at - back - 1) == byte(data, at - distance - back - 1) {
            back += 1;
        }
        let from = at + SHORTEST;
        let differ = load16(data, from) ^ load16(data, from - distance);
        let ahead = if differ != 0 {
            (differ.trailing_zeros() / 8) as usize
        } else {
            let end = data.len() - LAST_LITERALS;
            STEP + match_len(data, from + STEP, from + STEP - distance, end)
        };
        let literals = at - back - anchor;
        if literals + literals / 128 >= room {
            return anchor;
        }
        let code = back + ahead;
        let len = if literals < LONG && code < LONG {
            out.short(data, anchor, literals, distance, code)
        } else {
            let token = out.token();
            out.literals_in_steps(token, data, anchor, literals);
            out.rest_of_match(token, distance, code)
        };
        at = anchor + literals + len;
        anchor = at;
        if at > limit || out.left() <= ROOM {
            return anchor;
        }
        table[hash::<N>(load8(data, at - 2))] = (at - 2) as u16;
    }
}

/// Searches for a match from `at` to `stop`, after which at least [`ROOM`] bytes follow. Returns its distance.
#[inline(always)]
fn search<const N: usize>(
    table: &mut [u16; N],
    data: &[u8],
    at: &mut usize,
    stop: usize,
) -> Option<usize> {
    let bytes = load8(data, *at);
    let mut walk = GreedyParse {
        at: *at,
        next: *at + 1,
        tries: 1 << SKIP_LOG,
        bytes,
        slot: hash::<N>(bytes),
    };
    let found = match walk.go::<N, false>(table, data, stop.min(NEAR)) {
        None if stop > NEAR => walk.go::<N, true>(table, data, stop),
        found => found,
    };
    *at = walk.at;
    found
}

/// State of a search.
struct GreedyParse {
    at: usize,
    next: usize,
    tries: usize,
    bytes: u64,
    slot: usize,
}

impl GreedyParse {
    /// Continues up to `stop`. `FAR`: the table stores only the lowest bits of a position.
    #[inline(always)]
    fn go<const N: usize, const FAR: bool>(
        &mut self,
        table: &mut [u16; N],
        data: &[u8],
        stop: usize,
    ) -> Option<usize> {
        while self.next <= stop {
            let at = self.at;
            let ahead = load8(data, self.next);
            let ahead_slot = hash::<N>(ahead);
            let place = table[self.slot];
            table[self.slot] = at as u16;
            if FAR {
                // A distance of 0 stands for 65,536.
                let distance = usize::from((at as u16).wrapping_sub(place));
                if load4(data, at - distance) == self.bytes as u32 && distance != 0 {
                    return Some(distance);
                }
            } else if load4(data, usize::from(place)) == self.bytes as u32 {
                return Some(at - usize::from(place));
            }
            (self.at, self.bytes, self.slot) = (self.next, ahead, ahead_slot);
            self.next += self.tries >> SKIP_LOG;
            self.tries += 1;
        }
        None
    }
}

/// Writes the last sequences, from `anchor` on, while the last literals fit after them. Returns the end of the last
/// match.
///
/// The table may contain positions after the current one: the fast path searched further than it wrote.
#[inline(always)]
fn with_care<const N: usize>(
    table: &mut [u16; N],
    data: &[u8],
    mut anchor: usize,
    out: &mut BlockWriter<'_>,
) -> usize {
    // Loads of eight bytes at or before `start_end` are within the data.
    let (start_end, match_end) = (data.len() - LAST_MATCH, data.len() - LAST_LITERALS);
    let mut at = anchor.max(1);
    let mut tries = 1 << SKIP_LOG;
    while at <= start_end && at - anchor <= out.left() {
        let bytes = load8(data, at);
        let slot = hash::<N>(bytes);
        let distance = usize::from((at as u16).wrapping_sub(table[slot]));
        table[slot] = at as u16;
        let found = (1..=at).contains(&distance) && load4(data, at - distance) == bytes as u32;
        if !found {
            at += tries >> SKIP_LOG;
            tries += 1;
            continue;
        }
        let most = (at - anchor).min(at - distance);
        let back = match_len_backward(data, at, at - distance, most);
        let literals = at - back - anchor;
        if 1 + literals + (literals + 240) / 255 + 2 + TAIL > out.left() {
            return anchor;
        }
        let from = at + SHORTEST;
        let ahead = match_len(data, from, from - distance, match_end);
        let token = out.token();
        out.literals(token, data, anchor, anchor + literals);
        at = anchor + literals + out.rest_of_match(token, distance, back + ahead);
        anchor = at;
        if out.left() < 1 + 2 + TAIL {
            return anchor;
        }
        tries = 1 << SKIP_LOG;
    }
    anchor
}

/// Hashes the first five bytes of `bytes`.
#[inline(always)]
fn hash<const N: usize>(bytes: u64) -> usize {
    ((bytes << 24).wrapping_mul(889_523_592_379) >> (64 - N.ilog2())) as usize
}

/// Output, written from its start.
struct BlockWriter<'a> {
    dst: &'a mut [u8],
    pos: usize,
}

impl BlockWriter<'_> {
    fn left(&self) -> usize {
        self.dst.len() - self.pos
    }

    /// Writes a byte. Every caller has compared [`left`](Self::left).
    #[inline(always)]
    fn put(&mut self, byte: u8) {
        debug_assert!(self.left() >= 1);
        // SAFETY: every caller has compared the position with the end of the output.
        unsafe { *self.dst.get_unchecked_mut(self.pos) = byte };
        self.pos += 1;
    }

    /// Adds bits to a token written before.
    #[inline(always)]
    fn add(&mut self, token: usize, bits: usize) {
        debug_assert!(token < self.pos && bits < 256);
        // SAFETY: a token is before the current position.
        unsafe { *self.dst.get_unchecked_mut(token) |= bits as u8 };
    }

    /// Writes an empty token. Returns its position.
    #[inline(always)]
    fn token(&mut self) -> usize {
        self.put(0);
        self.pos - 1
    }

    /// Writes the extension bytes of a length of which the token holds 15.
    #[inline(always)]
    fn extend(&mut self, mut rest: usize) {
        while rest >= 255 {
            self.put(255);
            rest -= 255;
        }
        self.put(rest as u8);
    }

    /// Writes the number of literals.
    #[inline(always)]
    fn count(&mut self, token: usize, n: usize) {
        self.add(token, n.min(LONG) << 4);
        if n >= LONG {
            self.extend(n - LONG);
        }
    }

    /// Writes the literals `data[from..to]`.
    fn literals(&mut self, token: usize, data: &[u8], from: usize, to: usize) {
        self.count(token, to - from);
        let end = self.pos + to - from;
        self.dst[self.pos..end].copy_from_slice(&data[from..to]);
        self.pos = end;
    }

    /// Writes `n` literals where one more step can be read and written.
    #[inline(always)]
    fn literals_in_steps(&mut self, token: usize, data: &[u8], from: usize, n: usize) {
        self.count(token, n);
        let mut done = 0;
        loop {
            let (to, bytes) = (self.pos + done, load16(data, from + done));
            debug_assert!(to + STEP <= self.dst.len());
            // SAFETY: the caller has compared the space with the length plus one step; the store is unaligned.
            unsafe {
                self.dst
                    .as_mut_ptr()
                    .add(to)
                    .cast::<u128>()
                    .write_unaligned(bytes.to_le())
            };
            done += STEP;
            if done >= n {
                break;
            }
        }
        self.pos += n;
    }

    /// Writes a sequence whose lengths fit in the token, where there is [`ROOM`] at both ends. Returns the length of
    /// its match.
    #[inline(always)]
    fn short(
        &mut self,
        data: &[u8],
        from: usize,
        literals: usize,
        distance: usize,
        code: usize,
    ) -> usize {
        debug_assert!(literals < LONG && code < LONG && self.left() >= 1 + STEP + 2);
        let bytes = load16(data, from);
        // SAFETY: a token, fewer literals than a step, and a distance are shorter than the space that the caller has
        // compared; the store is unaligned.
        unsafe {
            let to = self.dst.as_mut_ptr().add(self.pos);
            *to = (literals << 4 | code) as u8;
            to.add(1).cast::<u128>().write_unaligned(bytes.to_le());
            let to = to.add(1 + literals).cast::<[u8; 2]>();
            to.write((distance as u16).to_le_bytes());
        }
        self.pos += 1 + literals + 2;
        SHORTEST + code
    }

    /// Writes the distance and the length of a match, and returns the length.
    ///
    /// The length is `code` bytes more than the shortest, or less if only that fits before the last literals. The
    /// shortest match fits.
    #[inline(always)]
    fn rest_of_match(&mut self, token: usize, distance: usize, mut code: usize) -> usize {
        let [low, high] = (distance as u16).to_le_bytes();
        self.put(low);
        self.put(high);
        if code >= LONG {
            let room = self.left() - 1 - LAST_LITERALS;
            if (code + 240) / 255 > room {
                code = 14 + room * 255;
            }
        }
        self.add(token, code.min(LONG));
        if code >= LONG {
            self.extend(code - LONG);
        }
        SHORTEST + code
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Method;

    const ENTRIES: usize = 1 << 13;

    #[test]
    fn a_shortest_match_after_any_number_of_literals_respects_the_end_rules() {
        let mut seed = 1u64;
        let mut noise = |n: usize| -> Vec<u8> {
            let next = |_| {
                seed = seed
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                (seed >> 56) as u8
            };
            (0..n).map(next).collect()
        };
        // Empty entries point to the start: only there may a match be shorter than the five hashed bytes.
        let (first, second) = (*b"startA", *b"starB");
        let mut encoder = GreedyEncoder::<ENTRIES>::new(&EncoderSpec::new(Method::Lz4, 4096));
        for literals in 0..=600 {
            let input = [&first[..], &noise(literals), &second, &noise(700)].concat();
            for room in 64..64 + literals {
                let mut dst = vec![0; room];
                let fit = encoder.fit(&input, 0, &mut dst);
                let mut back = vec![0; fit.consumed];
                let len = super::super::decode(&dst[..fit.written], &mut back);
                assert_eq!(len, Some(fit.consumed), "{literals} literals, {room} bytes");
                assert!(back == input[..fit.consumed]);
            }
        }
    }

    #[test]
    fn accelerated_and_portable_code_write_the_same_block() {
        let mut seed = 1u32;
        // Recurring words with noise between them.
        let data: Vec<u8> = (0..200_000)
            .map(|at| {
                seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let word = b"extent of a cluster "[at % 20];
                if seed >> 28 == 0 {
                    (seed >> 20) as u8
                } else {
                    word
                }
            })
            .collect();
        let fill = |fill: FillFn<ENTRIES>, at: usize, room: usize| {
            let (mut table, mut dst) = (zeroed(), vec![0; room]);
            let fit = fill(&mut table, &data[at..], &mut dst);
            (fit.consumed, dst)
        };
        for room in [1, 5, 64, 4096, 20_000] {
            for at in [0, 1, 77, 150_000, 199_990] {
                assert!(fill(fill_portable, at, room) == fill(best_fill(), at, room));
            }
        }
    }
}
