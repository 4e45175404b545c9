//! Detection of sequential and strided readers, by inode.

use crate::read::Nid;
use std::sync::{Mutex, PoisonError};

/// Number of streams per set.
const WAYS: usize = 4;

/// Number of sets, each with a lock.
const SETS: usize = 16;

/// Minimum length of requests that may arrive out of order: kernel readahead sends several at once.
/// Unit: bytes.
const REORDER_LEN_MIN: u64 = 32 << 10;

/// Maximum distance between requests that arrive out of order: two readahead windows of 2 MiB, as
/// for files opened with `POSIX_FADV_SEQUENTIAL`. Unit: bytes.
const REORDER_MAX: u64 = 4 << 20;

/// First and longest readahead span. Unit: bytes of the file.
const READAHEAD: (u64, u64) = (512 << 10, 4 << 20);

/// Length of a sequential run after which the device may drop data that was read. Drop hints cover
/// at least `CONSUMED_STEP` and stay `CONSUMED_GAP` before the reader, because requests in flight
/// may still need that data. Unit: bytes of the file.
const CONSUMED: u64 = 32 << 20;
const CONSUMED_STEP: u64 = 16 << 20;
const CONSUMED_GAP: u64 = 8 << 20;

/// State of the reader of one file.
#[derive(Clone, Copy, Default)]
struct Stream {
    /// `None` if the entry is unused.
    nid: Option<Nid>,
    /// Expected offset of the next sequential request. Unit: bytes.
    next: u64,
    /// Number of consecutive sequential requests.
    run: u32,
    /// Start of the last request, its distance to the one before, and the number of consecutive
    /// requests at this distance. Unit of start and distance: bytes.
    start: u64,
    step: u64,
    steps: u32,
    /// End of the range that readahead hints cover. Unit: bytes.
    announced: u64,
    /// Start of the sequential run, and end of the range that drop hints cover. Unit: bytes.
    first: u64,
    dropped: u64,
    /// Time of the last use, by the clock of the set.
    used: u64,
}

#[derive(Default)]
struct Set {
    streams: [Stream; WAYS],
    clock: u64,
}

/// Most recently used streams, in a set-associative table.
pub(crate) struct Streams([Mutex<Set>; SETS]);

/// Access pattern of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Access {
    /// The request continues an earlier one, or starts at offset 0.
    pub(crate) sequential: bool,
    /// File range for a readahead hint: start and end. Empty for most requests. Unit: bytes.
    pub(crate) readahead: (u64, u64),
    /// File range for a drop hint: start and end. Empty for most requests. Unit: bytes.
    pub(crate) consumed: (u64, u64),
    /// Stride of a reader whose requests are shorter than the stride. Unit: bytes.
    pub(crate) stride: Option<u64>,
}

/// Number of equal steps after which a reader counts as strided.
const STRIDE_STEPS_MIN: u32 = 2;

/// Maximum number of steps between two requests of a strided reader.
const SKIPPED_STEPS_MAX: u64 = 16;

impl Streams {
    pub(crate) fn new() -> Self {
        Self(std::array::from_fn(|_| Mutex::default()))
    }

    /// Records a request for `len` bytes at `offset`, and returns its access pattern.
    pub(crate) fn note(&self, nid: Nid, offset: u64, len: u64) -> Access {
        // Fits: a remainder.
        let set = &self.0[(nid.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 60) as usize % SETS];
        let mut set = set.lock().unwrap_or_else(PoisonError::into_inner);
        set.clock += 1;
        let clock = set.clock;
        let known = set.streams.iter().position(|s| s.nid == Some(nid));
        let at = known.unwrap_or_else(|| {
            let oldest = (0..WAYS).min_by_key(|i| set.streams[*i].used);
            oldest.expect("there are several")
        });
        let stream = &mut set.streams[at];
        let end = offset.saturating_add(len);
        let step = match known {
            Some(_) => offset.saturating_sub(stream.start),
            None => 0,
        };
        let again = stream.steps.saturating_add(1);
        let (step, steps) = match step {
            _ if step <= len => (step, 0),
            _ if step == stream.step => (step, again),
            // A cache above the server may have answered the steps in between.
            _ if stream.steps >= STRIDE_STEPS_MIN
                && step.is_multiple_of(stream.step)
                && step / stream.step <= SKIPPED_STEPS_MAX =>
            {
                (stream.step, again)
            }
            _ => (step, 1),
        };
        let follows = match known {
            None => offset == 0,
            Some(_) => {
                let gap = stream.next.abs_diff(offset);
                offset == 0
                    || gap == 0
                    || len >= REORDER_LEN_MIN && gap <= (4 * len).max(REORDER_MAX)
            }
        };
        if known.is_none() || !follows || offset == 0 {
            *stream = Stream {
                nid: Some(nid),
                next: end,
                first: offset,
                dropped: offset,
                ..Stream::default()
            };
        } else {
            stream.run += 1;
            stream.next = stream.next.max(end);
        }
        (stream.start, stream.step, stream.steps) = (offset, step, steps);
        stream.used = clock;
        let mut readahead = (0, 0);
        if stream.run >= 2 {
            // The span grows with the run. Hints are sent in steps of half a span.
            let span = (READAHEAD.0 << (stream.run / 4).min(8)).min(READAHEAD.1);
            if stream.announced < stream.next + span / 2 {
                readahead = (stream.announced.max(stream.next), stream.next + span);
                stream.announced = readahead.1;
            }
        }
        let mut consumed = (0, 0);
        if stream.run >= 2 && stream.next - stream.first >= CONSUMED {
            let to = stream.next - CONSUMED_GAP;
            if to >= stream.dropped.saturating_add(CONSUMED_STEP) {
                consumed = (stream.dropped, to);
                stream.dropped = to;
            }
        }
        Access {
            sequential: follows,
            readahead,
            consumed,
            stride: (steps >= STRIDE_STEPS_MIN && !follows).then_some(step),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;

    #[test]
    fn sequential_readers_get_each_readahead_hint_once() {
        let streams = Streams::new();
        let (mut at, mut announced) = (0, 0);
        for _ in 0..200 {
            let access = streams.note(Nid(5), at, 128 * KIB);
            assert!(access.sequential);
            at += 128 * KIB;
            let (from, to) = access.readahead;
            if to > from {
                assert!(from >= announced && from >= at, "no hint twice");
                assert!(to - at <= READAHEAD.1, "at most the longest span");
                announced = to;
            }
        }
        assert!(announced > at);
        // A reader of another file does not disturb the first one.
        streams.note(Nid(6), 7 * KIB, 4 * KIB);
        assert!(streams.note(Nid(5), at, 128 * KIB).sequential);
    }

    #[test]
    fn drop_hints_cover_each_byte_once_and_stay_before_the_reader() {
        let streams = Streams::new();
        let (mut at, mut dropped) = (256 * KIB, 256 * KIB);
        streams.note(Nid(5), 0, 4 * KIB);
        streams.note(Nid(5), at, 4 * KIB); // the run begins here
        at += 4 * KIB;
        for _ in 0..400 {
            let access = streams.note(Nid(5), at, 128 * KIB);
            at += 128 * KIB;
            let (from, to) = access.consumed;
            if to > from {
                assert_eq!(from, dropped, "each byte once");
                assert!(to + CONSUMED_GAP <= at && at >= CONSUMED);
                dropped = to;
            }
        }
        assert!(dropped > 24 << 20);
        // Other readers cause no drop hints.
        assert_eq!(streams.note(Nid(6), 0, 64 << 20).consumed, (0, 0));
    }

    #[test]
    fn reordered_long_requests_are_sequential() {
        let streams = Streams::new();
        for at in [0, 256, 128, 512, 384, 640, 2560, 768] {
            assert!(streams.note(Nid(1), at * KIB, 128 * KIB).sequential, "{at}");
        }
    }

    #[test]
    fn skipped_steps_do_not_change_a_stride() {
        let streams = Streams::new();
        let stride = |at: u64| streams.note(Nid(1), at * 128 * KIB, 4 * KIB).stride;
        for at in [1, 2, 3] {
            stride(at);
        }
        for at in [4, 6, 8, 12, 13, 29] {
            assert_eq!(stride(at), Some(128 * KIB), "{at}");
        }
        assert_eq!(stride(46), None, "too many steps for the same reader");
    }

    #[test]
    fn random_and_strided_requests_are_not_sequential() {
        let streams = Streams::new();
        for i in 1..100 {
            let stride = streams.note(Nid(1), i * 128 * KIB, 4 * KIB);
            let random = streams.note(Nid(2), i * 7919 % 1000 * 4 * KIB, 4 * KIB);
            for access in [stride, random] {
                assert_eq!(
                    (access.sequential, access.readahead),
                    (false, (0, 0)),
                    "{i}"
                );
            }
            assert_eq!(stride.stride, (i > 2).then_some(128 * KIB), "{i}");
            assert_eq!(random.stride, None, "{i}");
        }
    }
}
