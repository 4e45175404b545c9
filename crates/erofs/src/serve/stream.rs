//! Who reads on where they ended: requests of one file that follow each other.

use crate::read::Nid;
use std::sync::{Mutex, PoisonError};

/// Files per lock.
const WAYS: usize = 4;

/// Locks.
const SETS: usize = 16;

/// Requests at least this long may overtake each other: a kernel that reads ahead sends several at once. Unit: bytes.
const LONG: u64 = 32 << 10;

/// By so much: two spans of 2 MiB, which a kernel reads ahead for who says that it reads from front to back. Unit: bytes.
const OVERTAKEN: u64 = 4 << 20;

/// The first span that is announced to the device, and the longest. Unit: bytes of the file.
const AHEAD: (u64, u64) = (512 << 10, 4 << 20);

/// A reader who has read so much in a row is told of to the device, which need not keep what lies behind it; in steps, and
/// not of what other requests on their way may still want. Unit: bytes of the file.
const BEHIND: u64 = 32 << 20;
const BEHIND_STEP: u64 = 16 << 20;
const BEHIND_GAP: u64 = 8 << 20;

/// What is known of one file's reader.
#[derive(Clone, Copy, Default)]
struct Stream {
    /// `None`: nobody's.
    nid: Option<Nid>,
    /// Where it will go on. Unit: bytes.
    next: u64,
    /// Requests in a row.
    run: u32,
    /// Where the last request started, how far behind the one before, and how often that was as far. Unit: bytes.
    start: u64,
    step: u64,
    steps: u32,
    /// Up to where the device knows already. Unit: bytes.
    announced: u64,
    /// Where the row began, and up to where the device was told that it is over. Unit: bytes.
    first: u64,
    over: u64,
    /// When it was last used, by the set's clock.
    used: u64,
}

#[derive(Default)]
struct Set {
    streams: [Stream; WAYS],
    clock: u64,
}

/// The readers of the files that were read last.
pub(crate) struct Streams([Mutex<Set>; SETS]);

/// What a request is part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Access {
    /// It goes on where an earlier one ended, or starts at the start.
    pub(crate) sequential: bool,
    /// Bytes of the file that will be wanted soon and were not announced yet: start and end. Empty for most requests.
    pub(crate) ahead: (u64, u64),
    /// Bytes of the file that a reader of much has left behind: start and end. Empty for most requests.
    pub(crate) behind: (u64, u64),
    /// The reader goes ahead in steps of so many bytes, and reads less than that.
    pub(crate) stride: Option<u64>,
}

/// So many steps of one length are no accident.
const STEPS: u32 = 2;

/// Most steps from one request to the next of a reader who goes ahead in steps.
const UNSEEN: u64 = 16;

impl Streams {
    pub(crate) fn new() -> Self {
        Self(std::array::from_fn(|_| Mutex::default()))
    }

    /// Notes a request for `len` bytes at `offset`.
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
            // Steps in between may have been answered by a cache in front of this one.
            _ if stream.steps >= STEPS
                && step.is_multiple_of(stream.step)
                && step / stream.step <= UNSEEN =>
            {
                (stream.step, again)
            }
            _ => (step, 1),
        };
        let follows = match known {
            None => offset == 0,
            Some(_) => {
                let gap = stream.next.abs_diff(offset);
                offset == 0 || gap == 0 || len >= LONG && gap <= (4 * len).max(OVERTAKEN)
            }
        };
        if known.is_none() || !follows || offset == 0 {
            *stream = Stream {
                nid: Some(nid),
                next: end,
                first: offset,
                over: offset,
                ..Stream::default()
            };
        } else {
            stream.run += 1;
            stream.next = stream.next.max(end);
        }
        (stream.start, stream.step, stream.steps) = (offset, step, steps);
        stream.used = clock;
        let mut ahead = (0, 0);
        if stream.run >= 2 {
            // Further ahead the longer it goes on; announced in steps of half of that.
            let span = (AHEAD.0 << (stream.run / 4).min(8)).min(AHEAD.1);
            if stream.announced < stream.next + span / 2 {
                ahead = (stream.announced.max(stream.next), stream.next + span);
                stream.announced = ahead.1;
            }
        }
        let mut behind = (0, 0);
        if stream.run >= 2 && stream.next - stream.first >= BEHIND {
            let to = stream.next - BEHIND_GAP;
            if to >= stream.over.saturating_add(BEHIND_STEP) {
                behind = (stream.over, to);
                stream.over = to;
            }
        }
        Access {
            sequential: follows,
            ahead,
            behind,
            stride: (steps >= STEPS && !follows).then_some(step),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;

    #[test]
    fn a_reader_from_front_to_back_is_seen_and_announced_once() {
        let streams = Streams::new();
        let (mut at, mut announced) = (0, 0);
        for _ in 0..200 {
            let access = streams.note(Nid(5), at, 128 * KIB);
            assert!(access.sequential);
            at += 128 * KIB;
            let (from, to) = access.ahead;
            if to > from {
                assert!(from >= announced && from >= at, "nothing twice");
                assert!(to - at <= AHEAD.1, "bounded");
                announced = to;
            }
        }
        assert!(announced > at);
        // A second reader of another file does not disturb the first.
        streams.note(Nid(6), 7 * KIB, 4 * KIB);
        assert!(streams.note(Nid(5), at, 128 * KIB).sequential);
    }

    #[test]
    fn what_a_reader_of_much_leaves_behind_is_told_once_and_with_a_gap() {
        let streams = Streams::new();
        let (mut at, mut over) = (256 * KIB, 256 * KIB);
        streams.note(Nid(5), 0, 4 * KIB);
        streams.note(Nid(5), at, 4 * KIB); // the row begins here
        at += 4 * KIB;
        for _ in 0..400 {
            let access = streams.note(Nid(5), at, 128 * KIB);
            at += 128 * KIB;
            let (from, to) = access.behind;
            if to > from {
                assert_eq!(from, over, "nothing twice, nothing left out");
                assert!(to + BEHIND_GAP <= at && at >= BEHIND);
                over = to;
            }
        }
        assert!(over > 24 << 20);
        // Others are not told of.
        assert_eq!(streams.note(Nid(6), 0, 64 << 20).behind, (0, 0));
    }

    #[test]
    fn requests_that_overtake_each_other_are_sequential() {
        let streams = Streams::new();
        for at in [0, 256, 128, 512, 384, 640, 2560, 768] {
            assert!(streams.note(Nid(1), at * KIB, 128 * KIB).sequential, "{at}");
        }
    }

    #[test]
    fn steps_that_are_answered_elsewhere_do_not_change_a_stride() {
        let streams = Streams::new();
        let stride = |at: u64| streams.note(Nid(1), at * 128 * KIB, 4 * KIB).stride;
        for at in [1, 2, 3] {
            stride(at);
        }
        for at in [4, 6, 8, 12, 13, 29] {
            assert_eq!(stride(at), Some(128 * KIB), "{at}");
        }
        assert_eq!(stride(46), None, "so far ahead it is somebody else");
    }

    #[test]
    fn random_and_stride_are_not() {
        let streams = Streams::new();
        for i in 1..100 {
            let stride = streams.note(Nid(1), i * 128 * KIB, 4 * KIB);
            let random = streams.note(Nid(2), i * 7919 % 1000 * 4 * KIB, 4 * KIB);
            for access in [stride, random] {
                assert_eq!((access.sequential, access.ahead), (false, (0, 0)), "{i}");
            }
            assert_eq!(stride.stride, (i > 2).then_some(128 * KIB), "{i}");
            assert_eq!(random.stride, None, "{i}");
        }
    }
}
