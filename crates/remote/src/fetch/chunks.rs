//! Requests, and the chunks of their answers as they arrive; chunks of other images in the cache.

use super::queue::{OwnSlot, Priority};
use super::shared::SharedChunk;
use crate::client::link::InFlight;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use tokio::sync::mpsc::UnboundedSender;

/// Chunk with its bytes.
pub(super) struct Arrived {
    pub(super) chunk: u64,
    pub(super) bytes: Vec<u8>,
}

/// Request for a run of chunks.
pub(super) struct Request {
    pub(super) run: Range<u64>,
    pub(super) priority: Priority,
    pub(super) slots: Vec<OwnSlot>,
    /// Bytes after which readers go first, unless one waits for this request. Unit: bytes.
    pub(super) step: u64,
    pub(super) flight: Arc<InFlight>,
    pub(super) started: Instant,
}

/// Progress of a request.
pub(super) struct Progress {
    started: Instant,
    /// First chunk that has not arrived.
    next: AtomicU64,
    /// Time to the first chunk, 0 before that. Unit: microseconds.
    first: AtomicU64,
}

impl Progress {
    pub(super) fn new(first: u64, started: Instant) -> Self {
        Self {
            started,
            next: AtomicU64::new(first),
            first: AtomicU64::new(0),
        }
    }

    /// First chunk that has not arrived.
    pub(super) fn next(&self) -> u64 {
        self.next.load(Ordering::Relaxed)
    }

    /// Time to the first chunk, if it has arrived.
    pub(super) fn first(&self) -> Option<std::time::Duration> {
        let time = self.first.load(Ordering::Relaxed);
        (time > 0).then(|| std::time::Duration::from_micros(time))
    }

    fn arrived(&self, chunk: u64) {
        self.next.fetch_max(chunk + 1, Ordering::Relaxed);
        let time = u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX);
        // Fails if there is a first one.
        let _ = self
            .first
            .compare_exchange(0, time.max(1), Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// Cuts the bytes of a range into chunks, and passes on each one as soon as it is complete.
pub(super) struct Cutter {
    chunk: u64,
    /// Length of each chunk but the last one. Unit: bytes.
    chunk_size: u64,
    /// Bytes of the range that have not arrived.
    left: u64,
    bytes: Vec<u8>,
    chunks: UnboundedSender<Arrived>,
    flight: Arc<InFlight>,
    progress: Arc<Progress>,
}

impl Cutter {
    /// Cutter of `range`, which starts at a chunk of `chunk_size` bytes.
    pub(super) fn new(
        range: &Range<u64>,
        chunk_size: u64,
        chunks: UnboundedSender<Arrived>,
        flight: Arc<InFlight>,
        progress: Arc<Progress>,
    ) -> Self {
        Self {
            chunk: range.start / chunk_size,
            chunk_size,
            left: range.end - range.start,
            bytes: Vec::new(),
            chunks,
            flight,
            progress,
        }
    }

    pub(super) fn put(&mut self, mut bytes: &[u8]) {
        self.flight.arrived(bytes.len());
        while !bytes.is_empty() && self.left > 0 {
            let left = self.bytes.len() as u64 + self.left;
            let len = self.chunk_size.min(left) as usize; // fits: at most 128 KiB
            if self.bytes.is_empty() {
                self.bytes.reserve_exact(len);
            }
            let (taken, rest) = bytes.split_at(bytes.len().min(len - self.bytes.len()));
            self.bytes.extend_from_slice(taken);
            self.left -= taken.len() as u64;
            bytes = rest;
            if self.bytes.len() == len {
                self.flight.has_first();
                self.progress.arrived(self.chunk);
                let bytes = std::mem::take(&mut self.bytes);
                let chunk = self.chunk;
                // The receiver is gone if it has failed, which the request learns from it.
                let _ = self.chunks.send(Arrived { chunk, bytes });
                self.chunk += 1;
            }
        }
    }
}

/// Takes the chunks of a run that `find` has. Returns the others, with gaps of at most `gap` chunks.
pub(super) fn missing_of(
    run: &Range<u64>,
    gap: u64,
    find: impl Fn(u64) -> Option<SharedChunk>,
    mut take: impl FnMut(u64, SharedChunk),
) -> Vec<Range<u64>> {
    let mut missing: Vec<Range<u64>> = Vec::new();
    for chunk in run.clone() {
        if let Some(found) = find(chunk) {
            take(chunk, found);
            continue;
        }
        match missing.last_mut() {
            Some(last) if chunk - last.end <= gap => last.end = chunk + 1,
            _ => missing.push(chunk..chunk + 1),
        }
    }
    missing
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::CHUNK;
    use crate::client::link::Link;
    use tokio::sync::mpsc::unbounded_channel;

    #[test]
    fn chunks_are_passed_on_when_they_are_complete() {
        let link = Arc::new(Link::default());
        let (sender, mut chunks) = unbounded_channel();
        let progress = Arc::new(Progress::new(4, Instant::now()));
        let range = 4 * CHUNK..6 * CHUNK + 10;
        let flight = Arc::new(link.demand(CHUNK));
        let mut cutter = Cutter::new(&range, CHUNK, sender, flight, Arc::clone(&progress));
        let mut next = || chunks.try_recv().ok().map(|a| (a.chunk, a.bytes.len()));
        cutter.put(&vec![1; CHUNK as usize - 1]);
        assert_eq!((next(), progress.next(), progress.first()), (None, 4, None));
        cutter.put(&vec![1; CHUNK as usize + 5]);
        assert_eq!(next(), Some((4, CHUNK as usize)));
        assert_eq!(next(), Some((5, CHUNK as usize)));
        assert_eq!(progress.next(), 6);
        assert!(progress.first().is_some());
        cutter.put(&[1; 6]);
        assert_eq!((next(), progress.next()), (Some((6, 10)), 7));
        // More than was asked for is of no use.
        cutter.put(&[1; 6]);
        assert_eq!(next(), None);
    }

    #[test]
    fn copies_are_taken_and_small_gaps_between_the_others_stay() {
        let found = std::cell::RefCell::new(Vec::new());
        let find = |chunk: u64| {
            [4, 6, 8, 9].contains(&chunk).then(|| SharedChunk {
                bytes: vec![chunk as u8],
                place: None,
            })
        };
        let missing = |gap| {
            missing_of(&(4..12), gap, find, |chunk, shared| {
                assert_eq!(shared.bytes, [chunk as u8]);
                found.borrow_mut().push(chunk);
            })
        };
        assert_eq!(missing(0), [5..6, 7..8, 10..12]);
        assert_eq!(found.take(), [4, 6, 8, 9]);
        assert_eq!(missing(1), [5..8, 10..12]);
        assert_eq!(missing_of(&(8..10), 0, find, |_, _| ()), []);
    }
}
