//! Ends an LZ4 block early: so that a smaller output is filled from a block that is too long for it.
//!
//! ```text
//!  | sequence | ... | sequence | sequence | ... | last literals |
//!                              ^ a run of literals instead, as long as there is room
//! ```
//!
//! Source: LZ4 block format description (sequences, end rules).

use super::length::read_length;
use crate::{Fit, TailFit, Trim};

/// The shortest match. Unit: bytes.
const SHORTEST: usize = 4;

/// Lengths from here on have bytes behind the token.
const LONG: usize = 15;

/// So many literals at the end satisfy the end rules whatever is before them: the last match starts twelve bytes before the
/// end or earlier, and has four of them.
const LAST: usize = 8;

/// A sequence whose literals begin at `input` in what the block decodes to, and whose token is at `output` in it.
#[derive(Clone, Copy, Default)]
struct SequencePosition {
    input: usize,
    output: usize,
}

/// Ends the block in `dst` early where `trim` says so and it decodes to all of `data`.
pub(crate) fn trim_tail(data: &[u8], fit: Fit, dst: &mut [u8], trim: &Trim) -> TailFit {
    match trim
        .target(fit.written)
        .filter(|_| fit.consumed == data.len())
    {
        Some(room) => TailFit {
            fit: truncate(data, &mut dst[..fit.written], room),
            trimmed: true,
        },
        None => fit.into(),
    }
}

/// Shortens the block in `dst`, an encoder's, which decodes to the beginning of `data`, to `room` bytes, which is less than it
/// has.
fn truncate(data: &[u8], dst: &mut [u8], room: usize) -> Fit {
    let (mut here, mut last) = (SequencePosition::default(), SequencePosition::default());
    // Behind a match there has to be room for a token and the last literals.
    while here.output + 1 + LAST <= room {
        last = here;
        let Some(next) = next_sequence(dst, here) else {
            break;
        };
        here = next;
    }
    let left = room.saturating_sub(last.output + 1);
    // A run of so many literals takes a byte for every 255 of them.
    let run = if left < LONG {
        left
    } else {
        left - (left + 256 - LONG) / 256
    };
    let run = run.min(data.len() - last.input);
    if run == 0 {
        return Fit::NOTHING;
    }
    let mut at = last.output + 1;
    dst[last.output] = (run.min(LONG) << 4) as u8;
    if let Some(mut more) = run.checked_sub(LONG) {
        while more >= 255 {
            dst[at] = 255;
            at += 1;
            more -= 255;
        }
        dst[at] = more as u8;
        at += 1;
    }
    dst[at..at + run].copy_from_slice(&data[last.input..last.input + run]);
    Fit {
        consumed: last.input + run,
        written: at + run,
    }
}

/// The sequence behind one; `None` behind the last.
fn next_sequence(block: &[u8], place: SequencePosition) -> Option<SequencePosition> {
    let token = *block.get(place.output)?;
    let mut at = place.output + 1;
    let literals = read_length(block, &mut at, token >> 4)?;
    at += literals + 2;
    let matched = read_length(block, &mut at, token & 15)? + SHORTEST;
    Some(SequencePosition {
        input: place.input + literals + matched,
        output: at,
    })
}
