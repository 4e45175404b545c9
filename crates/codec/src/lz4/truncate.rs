//! Truncation of an LZ4 block to a smaller output size.
//!
//! ```text
//!  | sequence | ... | sequence | sequence | ... | last literals |
//!                              ^ a run of literals instead, as long as space permits
//! ```
//!
//! Source: LZ4 block format description (sequences, end rules).

use super::length::read_length;
use crate::{Fit, TailFit, Trim};

/// Length of the shortest match. Unit: bytes.
const SHORTEST: usize = 4;

/// Smallest length that needs extension bytes after the token.
const LONG: usize = 15;

/// Number of literals at the end that satisfies the end rules after any match: the last match starts at least twelve
/// bytes before the end and has at least four of them.
const LAST: usize = 8;

/// Start of a sequence: its literals begin at `input` in the content, and its token is at `output` in the block.
#[derive(Clone, Copy, Default)]
struct SequencePosition {
    input: usize,
    output: usize,
}

/// Truncates the block in `dst` if it decodes to all of `data` and `trim` applies.
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

/// Shortens an encoder's block in `dst`, which decodes to the beginning of `data`, to fewer bytes, `room`.
fn truncate(data: &[u8], dst: &mut [u8], room: usize) -> Fit {
    let (mut here, mut last) = (SequencePosition::default(), SequencePosition::default());
    // A match has to be followed by a token and the last literals.
    while here.output + 1 + LAST <= room {
        last = here;
        let Some(next) = next_sequence(dst, here) else {
            break;
        };
        here = next;
    }
    let left = room.saturating_sub(last.output + 1);
    // A run of literals takes one extra byte per 255 of them.
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

/// Returns the next sequence; `None` after the last one.
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
