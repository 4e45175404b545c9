//! Decoder of LZ4 blocks.
//!
//! ```text
//!  token | more literals? | literals | distance | more match? |   token ...
//!   4+4      0, 255, 255 ..              2 bytes    0, 255, ..
//! ```
//!
//! * The content depends on the block alone, not on earlier bytes of the output buffer. A distance of 0 would violate
//!   that. It is rejected like distances that reach before the output.
//! * Copies move 16 or 32 bytes at a time where space permits, and write up to [`STEP`] - 1 bytes past the current
//!   end of the output. [`in_place_margin`] relies on that limit.
//! * A whole block must satisfy the format's end rules, as in the library's decoder. A prefix stops where its output
//!   is full.
//!
//! Source: LZ4 block format description (sequences, end rules).

/// Size of the steps of long copies. Unit: bytes.
const STEP: usize = 32;

/// Fewest input bytes from a token on for the fast path: the token, 14 literals, copied as 16, and the minimum that
/// the end rules require after them. Unit: bytes.
const ROOM_IN: usize = 1 + 16 + LAST_MATCH_IN;

/// Fewest output bytes for the fast path. Unit: bytes.
///
/// They hold 14 literals, a match of 18 bytes and the excess of their copies; the 12 bytes that the end rules require
/// remain.
const ROOM_OUT: usize = 64;

/// Fewest bytes of the block after the literals before the last match. Unit: bytes.
const LAST_MATCH_IN: usize = 8;

/// Fewest bytes of output from the start of the last match on. Unit: bytes.
const LAST_MATCH_OUT: usize = 12;

/// Fewest bytes of output after the last match. Unit: bytes.
const LAST_LITERALS: usize = 5;

/// Length of the shortest match. Unit: bytes.
const SHORTEST: usize = 4;

/// Decodes a whole LZ4 block whose length is not known. Returns the number of bytes written; `None` if the block is malformed or
/// longer than `dst`, whose content is then unspecified.
#[must_use]
pub fn lz4_decode(src: &[u8], dst: &mut [u8]) -> Option<usize> {
    decode(src, dst)
}

/// Decodes a whole block. Returns the number of bytes written; `None` if the block is malformed or longer than `dst`.
pub(crate) fn decode(src: &[u8], dst: &mut [u8]) -> Option<usize> {
    // SAFETY: both are slices of the lengths passed.
    unsafe { run::<false>(src.as_ptr(), src.len(), dst.as_mut_ptr(), dst.len()) }
}

/// Decodes until `dst` is full or the block ends. Returns the number of bytes written; `None` if the block is
/// malformed before that.
pub(crate) fn decode_prefix(src: &[u8], dst: &mut [u8]) -> Option<usize> {
    // SAFETY: both are slices of the lengths passed.
    unsafe { run::<true>(src.as_ptr(), src.len(), dst.as_mut_ptr(), dst.len()) }
}

/// Returns the bytes past its output that a block of `src_len` bytes needs to be decoded in place. Unit: bytes.
///
/// The rest of a block exceeds its content by at most one byte per 255 literals and two bytes at its end. A match
/// takes fewer bytes than it produces, except after 15 literals. At the start of each sequence the output therefore
/// trails the input by at least [`STEP`], and no copy overwrites unread input.
pub(crate) fn in_place_margin(src_len: usize) -> usize {
    src_len / 255 + 2 + STEP
}

/// Decodes the block that forms the last `src_len` bytes of `buf` to the start of `buf`.
///
/// Returns the number of bytes written; `None` if the block is malformed or longer than `len`, or the margin is too
/// small.
pub(crate) fn decode_in_place(buf: &mut [u8], src_len: usize, len: usize) -> Option<usize> {
    let at = buf.len().checked_sub(src_len)?;
    if len.checked_add(in_place_margin(src_len))? > buf.len() {
        return None;
    }
    let start = buf.as_mut_ptr();
    // SAFETY: `at + src_len` is the buffer's length and `len` is less, by the two checks above. Both ranges lie in
    // `buf`, which is borrowed exclusively; they may overlap.
    unsafe { run::<false>(start.add(at).cast_const(), src_len, start, len) }
}

/// Decodes the block at `src` to `dst`, whole or until `dst` is full. Returns the number of bytes written; `None` if
/// the block is malformed.
///
/// # Safety
/// `src_len` bytes at `src` can be read, and `dst_len` bytes at `dst` can be read and written. The two may overlap:
/// each copy loads a step before it stores it, and no reference to them exists.
unsafe fn run<const PREFIX: bool>(
    src: *const u8,
    src_len: usize,
    dst: *mut u8,
    dst_len: usize,
) -> Option<usize> {
    // SAFETY: reads lie before `src_end` or before `op`, and writes lie before `dst_end`: by the comparison right
    // above, or by the one that a comment names. The caller guarantees those bounds.
    unsafe {
        let (mut ip, mut op) = (src, dst);
        let (src_end, dst_end) = (src.add(src_len), dst.add(dst_len));
        let src_steps = src_end.sub(ROOM_IN.min(src_len));
        let dst_steps = dst_end.sub(ROOM_OUT.min(dst_len));
        'sequence: loop {
            let (token, mut literals);
            'steps: {
                if ip >= src_steps || op >= dst_steps {
                    if ip == src_end {
                        return None;
                    }
                    token = *ip;
                    ip = ip.add(1);
                    literals = length(&mut ip, src_end, token >> 4)?;
                    break 'steps;
                }
                // Uses the token and 16 bytes of ROOM_IN, and 16 of ROOM_OUT.
                token = *ip;
                ip = ip.add(1);
                literals = usize::from(token >> 4);
                if literals < 15 {
                    copy::<16>(ip, op);
                } else {
                    literals = length(&mut ip, src_end, 15)?;
                    if literals.saturating_add(STEP) > src_end.offset_from_unsigned(ip)
                        || literals.saturating_add(ROOM_OUT) > dst_end.offset_from_unsigned(op)
                    {
                        break 'steps;
                    }
                    forward::<STEP>(ip, op, literals);
                }
                // LAST_MATCH_IN bytes of ROOM_IN, or of the step, remain, and 50 of ROOM_OUT.
                ip = ip.add(literals);
                op = op.add(literals);
                let distance = usize::from(load2(ip));
                ip = ip.add(2);
                if distance.wrapping_sub(1) >= op.offset_from_unsigned(dst) {
                    return None;
                }
                let from = op.sub(distance);
                let mut len = usize::from(token & 15);
                if len < 15 && distance >= 8 {
                    copy::<8>(from, op);
                    copy::<8>(from.add(8), op.add(8));
                    copy::<2>(from.add(16), op.add(16));
                    op = op.add(len + SHORTEST);
                    continue 'sequence;
                }
                if len == 15 {
                    len = length(&mut ip, src_end, 15)?;
                    if !PREFIX && src_end.offset_from_unsigned(ip) < LAST_LITERALS - 1 {
                        return None;
                    }
                }
                len = len.saturating_add(SHORTEST);
                if len.saturating_add(STEP) > dst_end.offset_from_unsigned(op) {
                    op = last_match::<PREFIX>(op, dst_end, len, distance)?;
                    if PREFIX && op == dst_end {
                        return Some(dst_len);
                    }
                    continue 'sequence;
                }
                if distance >= 16 {
                    steps_of_16(from, op, len);
                } else {
                    pattern(from, op, len, distance);
                }
                op = op.add(len);
                continue 'sequence;
            }
            let src_left = src_end.offset_from_unsigned(ip);
            let dst_left = dst_end.offset_from_unsigned(op);
            if PREFIX {
                literals = literals.min(dst_left);
            }
            if literals > src_left || literals > dst_left {
                return None;
            }
            if literals <= 16 && src_left >= 16 && dst_left >= 16 {
                copy::<16>(ip, op);
            } else {
                std::ptr::copy(ip, op, literals);
            }
            ip = ip.add(literals);
            op = op.add(literals);
            let (src_left, dst_left) = (src_left - literals, dst_left - literals);
            if src_left == 0 || (PREFIX && dst_left == 0) {
                return Some(dst_len - dst_left);
            }
            if PREFIX {
                if src_left < 2 {
                    return None;
                }
            } else if src_left < LAST_MATCH_IN || dst_left < LAST_MATCH_OUT {
                return None;
            }
            let distance = usize::from(load2(ip));
            ip = ip.add(2);
            if distance.wrapping_sub(1) >= dst_len - dst_left {
                return None;
            }
            let len = length(&mut ip, src_end, token & 15)?.saturating_add(SHORTEST);
            if !PREFIX && src_end.offset_from_unsigned(ip) < LAST_LITERALS - 1 {
                return None;
            }
            op = last_match::<PREFIX>(op, dst_end, len, distance)?;
            if PREFIX && op == dst_end {
                return Some(dst_len);
            }
        }
    }
}

/// Writes a match near the end of the output. Returns the position of the next byte; `None` if the match does not
/// fit.
///
/// # Safety
/// The bytes from `distance >= 1` bytes before `op` up to `dst_end` can be read and written.
#[inline(never)]
unsafe fn last_match<const PREFIX: bool>(
    op: *mut u8,
    dst_end: *mut u8,
    mut len: usize,
    distance: usize,
) -> Option<*mut u8> {
    // SAFETY: `len <= room`; copies in steps end at least one step before the end.
    unsafe {
        let room = dst_end.offset_from_unsigned(op);
        if PREFIX {
            len = len.min(room);
        } else if room < LAST_LITERALS || len > room - LAST_LITERALS {
            return None;
        }
        let from = op.sub(distance);
        if distance >= 8 && len.next_multiple_of(8) <= room {
            forward::<8>(from, op, len);
            return Some(op.add(len));
        }
        let steps = len.min(room.saturating_sub(STEP));
        if steps > 0 {
            if distance >= 16 {
                steps_of_16(from, op, steps);
            } else {
                pattern(from, op, steps, distance);
            }
        }
        for i in steps..len {
            op.add(i).write(from.add(i).read());
        }
        Some(op.add(len))
    }
}

/// Reads a length whose four bits in the token are `nibble`.
///
/// # Safety
/// The bytes from `ip` up to `src_end` can be read.
#[inline(always)]
unsafe fn length(ip: &mut *const u8, src_end: *const u8, nibble: u8) -> Option<usize> {
    let mut n = usize::from(nibble);
    if nibble == 15 {
        loop {
            if *ip == src_end {
                return None;
            }
            // SAFETY: `ip` is before the end.
            let byte = unsafe {
                let byte = **ip;
                *ip = ip.add(1);
                byte
            };
            n = n.saturating_add(usize::from(byte));
            if byte != 255 {
                break;
            }
        }
    }
    Some(n)
}

/// Writes `len` bytes, and up to 31 more, of the pattern of `distance < 16` bytes before `to`.
///
/// # Safety
/// `from` is `to - distance`, and the bytes between can be read; `len + 31` bytes at `to` can be written.
#[inline(never)]
unsafe fn pattern(from: *const u8, to: *mut u8, len: usize, distance: usize) {
    /// Smallest multiple of each distance that is at least 16.
    const BACK: [usize; 16] = [
        0, 16, 16, 18, 16, 20, 18, 21, 16, 18, 20, 22, 24, 26, 28, 30,
    ];
    // SAFETY: all accesses are within 32 bytes of `to`. `to + 16 - BACK` is not before `from`: a multiple of the
    // distance above 16 exceeds it by less than the distance.
    unsafe {
        if distance >= 8 {
            copy::<8>(from, to);
            copy::<8>(from.add(8), to.add(8));
        } else {
            // The pattern as a number, times a number with one bit set every `distance` bytes.
            let word = load8(from) & (u64::MAX >> (64 - 8 * distance as u32));
            let times = TIMES[distance];
            let low = u128::from(word) * u128::from(times as u64);
            let high = word.wrapping_mul((times >> 64) as u64);
            let both = low.wrapping_add(u128::from(high) << 64);
            to.cast::<u128>().write_unaligned(both.to_le());
        }
        if len <= 16 {
            return;
        }
        let back = BACK[distance];
        if back == 16 {
            let both = to.cast::<u128>().read_unaligned();
            let mut at = 16;
            while at < len {
                to.add(at).cast::<u128>().write_unaligned(both);
                at += 16;
            }
        } else {
            forward::<16>(to.add(16).sub(back), to.add(16), len - 16);
        }
    }
}

/// For each distance below 8, a number with bit 0 set in every byte whose index is a multiple of the distance.
const TIMES: [u128; 8] = {
    let mut times = [0; 8];
    let mut distance = 1;
    while distance < 8 {
        let mut at = 0;
        while at < 16 {
            times[distance] |= 1 << (8 * at);
            at += distance;
        }
        distance += 1;
    }
    times
};

/// Copies `len` bytes in steps of `N`; the last step may write too many.
///
/// # Safety
/// `len` rounded up to steps can be read and written there.
#[inline(always)]
unsafe fn forward<const N: usize>(from: *const u8, to: *mut u8, len: usize) {
    let mut at = 0;
    while at < len {
        // SAFETY: by the caller's promise.
        unsafe { copy::<N>(from.add(at), to.add(at)) };
        at += N;
    }
}

/// Copies `len` bytes over a distance of at least 16, two steps at a time.
///
/// # Safety
/// `len` rounded up to [`STEP`] can be read and written there.
#[inline(always)]
unsafe fn steps_of_16(from: *const u8, to: *mut u8, len: usize) {
    let mut at = 0;
    while at < len {
        // SAFETY: by the caller's promise.
        unsafe {
            copy::<16>(from.add(at), to.add(at));
            copy::<16>(from.add(at + 16), to.add(at + 16));
        }
        at += STEP;
    }
}

/// Copies `N` bytes, all of which are loaded before the first is stored.
///
/// # Safety
/// `N` bytes can be read and written there.
#[inline(always)]
unsafe fn copy<const N: usize>(from: *const u8, to: *mut u8) {
    // SAFETY: by the caller's promise; arrays of bytes have no alignment.
    unsafe { to.cast::<[u8; N]>().write(from.cast::<[u8; N]>().read()) }
}

/// Loads two bytes.
///
/// # Safety
/// Two bytes can be read there.
#[inline(always)]
unsafe fn load2(at: *const u8) -> u16 {
    // SAFETY: by the caller's promise.
    u16::from_le(unsafe { at.cast::<u16>().read_unaligned() })
}

/// Loads eight bytes.
///
/// # Safety
/// Eight bytes can be read there.
#[inline(always)]
unsafe fn load8(at: *const u8) -> u64 {
    // SAFETY: by the caller's promise.
    u64::from_le(unsafe { at.cast::<u64>().read_unaligned() })
}

#[cfg(all(test, feature = "encode"))]
mod tests {
    use super::*;
    use crate::{EncoderSpec, Method};
    use std::ffi::{c_char, c_int};

    unsafe extern "C" {
        fn LZ4_decompress_safe(
            src: *const c_char,
            dst: *mut c_char,
            src_size: c_int,
            dst_capacity: c_int,
        ) -> c_int;
    }

    /// Decodes a whole block with the library's decoder.
    fn library(src: &[u8], len: usize) -> Option<Vec<u8>> {
        let mut dst = vec![0; len];
        // SAFETY: both are slices of the lengths passed, below 2 GiB.
        let n = unsafe {
            LZ4_decompress_safe(
                src.as_ptr().cast(),
                dst.as_mut_ptr().cast(),
                src.len() as c_int,
                len as c_int,
            )
        };
        (usize::try_from(n) == Ok(len)).then_some(dst)
    }

    /// Reference decoder, byte by byte, in safe code. `None` also for a block that decodes to less.
    fn twin(src: &[u8], len: usize, prefix: bool) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        let mut src = src.iter().copied();
        fn more(src: &mut impl Iterator<Item = u8>, nibble: u8) -> Option<usize> {
            let mut n = usize::from(nibble);
            let mut more = nibble == 15;
            while more {
                let byte = src.next()?;
                n += usize::from(byte);
                more = byte == 255;
            }
            Some(n)
        }
        loop {
            let token = src.next()?;
            for _ in 0..more(&mut src, token >> 4)? {
                if prefix && out.len() == len {
                    break;
                }
                out.push(src.next()?);
            }
            if prefix && out.len() == len || src.len() == 0 {
                return (out.len() == len).then_some(out);
            }
            if !prefix && (src.len() < LAST_MATCH_IN || out.len() + LAST_MATCH_OUT > len) {
                return None;
            }
            let distance = usize::from(u16::from_le_bytes([src.next()?, src.next()?]));
            let from = out.len().checked_sub(distance).filter(|_| distance > 0)?;
            let matched = more(&mut src, token & 15)? + SHORTEST;
            let end = (out.len() + matched).min(if prefix { len } else { usize::MAX });
            if !prefix && (src.len() < LAST_LITERALS - 1 || end + LAST_LITERALS > len) {
                return None;
            }
            for i in from..from + (end - out.len()) {
                out.push(out[i]);
            }
            if prefix && out.len() == len {
                return Some(out);
            }
        }
    }

    /// Decodes into memory filled with `fill`, followed by a guard.
    fn fast(src: &[u8], len: usize, prefix: bool, fill: u8) -> Option<Vec<u8>> {
        let mut dst = vec![fill; len + 64];
        let decode = if prefix { decode_prefix } else { decode };
        let n = decode(src, &mut dst[..len]);
        assert!(dst[len..].iter().all(|b| *b == fill), "behind the output");
        dst.truncate(len);
        (n? == len).then_some(dst)
    }

    fn in_place(src: &[u8], len: usize, fill: u8) -> Option<Vec<u8>> {
        let room = len.max(src.len()) + in_place_margin(src.len());
        let mut buf = vec![fill; room];
        buf[room - src.len()..].copy_from_slice(src);
        let n = decode_in_place(&mut buf, src.len(), len)?;
        buf.truncate(len);
        (n == len).then_some(buf)
    }

    struct Random(u64);

    impl Random {
        fn below(&mut self, n: usize) -> usize {
            self.0 = self
                .0
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(99);
            (self.0 >> 33) as usize % n
        }
    }

    /// Returns a block with lengths and distances of all kinds, and its content.
    fn block(random: &mut Random, sequences: usize) -> (Vec<u8>, usize) {
        let (mut block, mut len) = (Vec::new(), 0);
        let some = |random: &mut Random| match random.below(8) {
            0 => random.below(5000),
            1..3 => random.below(80),
            _ => random.below(16),
        };
        let extend = |block: &mut Vec<u8>, n: usize| {
            if n >= 15 {
                block.extend(vec![255; (n - 15) / 255]);
                block.push(((n - 15) % 255) as u8);
            }
        };
        for _ in 0..sequences {
            let literals = some(random) + usize::from(len == 0);
            let matched = some(random);
            block.push((literals.min(15) << 4 | matched.min(15)) as u8);
            extend(&mut block, literals);
            block.extend((0..literals).map(|_| random.below(256) as u8));
            len += literals;
            let far = match random.below(3) {
                0 => 17,
                1 => 70,
                _ => 0xFFFF,
            };
            let distance = 1 + random.below(len.min(far));
            block.extend((distance as u16).to_le_bytes());
            extend(&mut block, matched);
            len += matched + SHORTEST;
        }
        let literals = 12 + some(random);
        block.push((literals.min(15) << 4) as u8);
        extend(&mut block, literals);
        block.extend((0..literals).map(|_| random.below(256) as u8));
        (block, len + literals)
    }

    /// Checks that all ways to decode agree, whatever the memory held before, and that the library agrees except for
    /// distance 0.
    fn agree(src: &[u8], len: usize) -> bool {
        let expected = twin(src, len, false);
        assert!(fast(src, len, false, 0x5A) == expected, "{src:02x?} {len}");
        assert!(fast(src, len, false, 0xA5) == expected, "{src:02x?} {len}");
        assert!(in_place(src, len, 0x5A) == expected || expected.is_none());
        if expected.is_some() {
            assert!(library(src, len) == expected, "{src:02x?} {len}");
        }
        expected.is_some()
    }

    #[test]
    fn safe_twin_and_library_decode_to_the_same_bytes() {
        let mut random = Random(1);
        for i in 0..3000 {
            let (block, len) = block(&mut random, i % 40);
            assert!(agree(&block, len), "{block:02x?} {len}");
            assert!(!agree(&block, len + 1) && !agree(&block, len - 1));
        }
    }

    #[test]
    fn every_prefix_equals_the_safe_twin() {
        let mut random = Random(2);
        for i in 0..60 {
            let (block, len) = block(&mut random, i % 12);
            for part in 0..len + 2 {
                let expected = twin(&block, part, true);
                assert_eq!(expected.is_some(), part <= len);
                if part > 0 {
                    assert!(
                        fast(&block, part, true, 0x5A) == expected,
                        "{part} of {len}"
                    );
                }
            }
        }
    }

    /// For arbitrary bytes, the result is that of the safe reference.
    #[test]
    fn results_for_damaged_blocks_equal_the_safe_twin() {
        let mut random = Random(3);
        let (mut broken, mut whole) = (0, 0);
        for i in 0..20_000 {
            let (mut block, len) = block(&mut random, i % 10);
            for _ in 0..1 + random.below(3) {
                let at = random.below(block.len());
                block[at] = match random.below(4) {
                    0 => 0,
                    1 => 255,
                    _ => random.below(256) as u8,
                };
            }
            block.truncate(
                block.len() - random.below(3) / 2 * random.below(20).min(block.len() - 1),
            );
            if agree(&block, len) {
                whole += 1;
            } else {
                broken += 1;
            }
            for part in [1, len / 3 + 1, len] {
                assert!(fast(&block, part, true, 0x5A) == twin(&block, part, true));
            }
        }
        assert!(broken > 1000 && whole > 1000, "{broken} {whole}");
    }

    #[test]
    fn every_truncation_is_rejected() {
        let (block, len) = block(&mut Random(4), 30);
        for end in 0..block.len() {
            assert_eq!(fast(&block[..end], len, false, 0), None, "cut at {end}");
        }
    }

    /// Found by fuzzing: the library's decoder accepted a match at distance 0 and kept earlier bytes of the output
    /// buffer. A cluster read whole and in part then had different content.
    #[test]
    fn a_match_at_distance_0_is_rejected() {
        let found = [
            &[0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x7e][..],
            &[0; 9],
            &[0x7f, 0xff, 0xff, 0xff, 0x2d, 0x30, 0x20, 0x20],
        ]
        .concat();
        assert!(!agree(&found, 0x2c));
        assert_eq!(fast(&found, 0x2c, true, 0), None);
        // A literal, then a short or long match at distance 0, then enough literals for both code paths.
        for (nibble, more) in [(0, &[][..]), (14, &[]), (15, &[3]), (15, &[255, 255, 40])] {
            for literals in [12, 200] {
                let mut bad = vec![0x10 | nibble, 7, 0, 0];
                bad.extend(more);
                let matched = usize::from(nibble) + SHORTEST;
                let matched = matched + more.iter().map(|b| usize::from(*b)).sum::<usize>();
                bad.push(literals.min(15) << 4);
                bad.extend((literals >= 15).then(|| literals - 15));
                bad.extend(vec![1; literals.into()]);
                let len = 1 + matched + usize::from(literals);
                assert!(!agree(&bad, len));
                assert_eq!(in_place(&bad, len, 0), None);
                assert_eq!(fast(&bad, 1, true, 0), Some(vec![7]), "in front of it");
                for part in 2..=len {
                    assert_eq!(fast(&bad, part, true, 0), None);
                }
                bad[2] = 1;
                assert!(agree(&bad, len), "nothing else is wrong");
            }
        }
    }

    /// The margin is tight for a long run of literals after a match.
    #[test]
    fn nearly_incompressible_blocks_decode_in_place() {
        let mut random = Random(6);
        for literals in [0, 254, 255, 1000, 70_000, 1 << 20] {
            for matched in [4, 18, 30, 60] {
                let mut block = vec![0x10 | (matched - 4usize).min(15) as u8, 7, 1, 0];
                if matched >= 19 {
                    block.push(matched as u8 - 19);
                }
                let literals = literals + 15;
                block.push(0xF0);
                block.extend(vec![255; (literals - 15) / 255]);
                block.push(((literals - 15) % 255) as u8);
                block.extend((0..literals).map(|_| random.below(256) as u8));
                let len = 1 + matched + literals;
                let expected = twin(&block, len, false).unwrap();
                assert!(in_place(&block, len, 0x5A) == Some(expected));
            }
        }
    }

    #[test]
    fn encoded_blocks_decode_in_place() {
        let mut random = Random(7);
        for method in [Method::Lz4, Method::Lz4hc] {
            let mut encoder = EncoderSpec::new(method, 1 << 16).build().unwrap();
            for _ in 0..20 {
                let (block, len) = block(&mut random, 200);
                let input = twin(&block, len, false).unwrap();
                let mut dst = vec![0; 1 << 16];
                encoder.reset();
                let fit = encoder.fit(&input, 0, &mut dst);
                assert!(agree(&dst[..fit.written], fit.consumed));
                assert!(
                    in_place(&dst[..fit.written], fit.consumed, 0)
                        == Some(input[..fit.consumed].to_vec())
                );
            }
        }
    }
}
