//! Fetching of missing chunks: single flight, coalescing, readahead, and a bound on connections.

use crate::cache::{CHUNK, Directory, ImageCache};
use crate::error::{Error, Kind, Result};
use crate::source::Object;
use crate::verifier::Verifier;
use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use tokio::runtime::Handle;

/// Number of chunks in one request: 1 MiB.
const PART: u64 = 8;

/// Number of chunks that a sequential reader is at most ahead of its last miss: 8 MiB.
const AHEAD_MAX: u64 = 64;

/// Number of sequential readers that are told apart.
const STREAMS: usize = 16;

/// Number of times that bytes which do not match the root hash are fetched.
const VERIFY_ATTEMPTS: u32 = 3;

/// Fetches chunks of one object into its cache.
pub(crate) struct Fetcher {
    object: Arc<dyn Object>,
    cache: Arc<ImageCache>,
    directory: Arc<Directory>,
    verifier: Option<Arc<Verifier>>,
    place: String,
    runtime: Handle,
    connections: usize,
    queue: Mutex<Queue>,
    finished: Condvar,
}

/// Chunks that came in one request, which waiting readers share.
pub(crate) struct Part {
    first: u64,
    bytes: Vec<u8>,
}

impl Part {
    /// Copies from a chunk of the part.
    pub(crate) fn copy(&self, chunk: u64, skip: usize, buf: &mut [u8]) {
        // Fits: the part is in memory.
        let at = ((chunk - self.first) * CHUNK) as usize + skip;
        buf.copy_from_slice(&self.bytes[at..at + buf.len()]);
    }
}

/// Result of a fetch, once there is one.
type Slot = Arc<OnceLock<Result<Arc<Part>>>>;

#[derive(Default)]
struct Queue {
    /// Chunks that a reader waits for.
    demand: BTreeSet<u64>,
    /// Chunks that a reader is expected to want.
    ahead: BTreeSet<u64>,
    /// Results of the chunks in `demand` and of those in flight.
    slots: HashMap<u64, Slot>,
    requests: usize,
    streams: [Stream; STREAMS],
    next_stream: usize,
}

/// Sequential reader: the end of what was asked for on its behalf, and how far ahead that was.
#[derive(Clone, Copy, Default)]
struct Stream {
    end: u64,
    ahead: u64,
}

impl Fetcher {
    pub(crate) fn new(
        object: Arc<dyn Object>,
        (directory, cache): (Arc<Directory>, Arc<ImageCache>),
        verifier: Option<Arc<Verifier>>,
        place: String,
        runtime: Handle,
        connections: usize,
    ) -> Self {
        Self {
            object,
            cache,
            directory,
            verifier,
            place,
            runtime,
            connections: connections.max(1),
            queue: Mutex::default(),
            finished: Condvar::new(),
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fetches a chunk and waits for it. Returns `None` if it is in the cache.
    pub(crate) fn fetch(self: &Arc<Self>, chunk: u64) -> Result<Option<Arc<Part>>> {
        let mut queue = self.queue();
        let slot = match queue.slots.get(&chunk) {
            Some(slot) => Arc::clone(slot),
            // A request stores its chunks before it removes their slots.
            None if self.cache.is_present(chunk) => return Ok(None),
            None => self.demand(&mut queue, chunk),
        };
        loop {
            if let Some(result) = slot.get() {
                return result.clone().map(Some);
            }
            queue = self
                .finished
                .wait(queue)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Asks for chunks without waiting.
    pub(crate) fn prefetch(self: &Arc<Self>, chunks: Range<u64>) {
        let mut queue = self.queue();
        self.want_ahead(&mut queue, chunks);
        self.dispatch(&mut queue);
    }

    /// Queues a chunk with its neighbours, and more of them for a sequential reader.
    fn demand(self: &Arc<Self>, queue: &mut Queue, chunk: u64) -> Slot {
        let slot = Slot::default();
        queue.slots.insert(chunk, Arc::clone(&slot));
        queue.ahead.remove(&chunk);
        queue.demand.insert(chunk);
        let start = chunk / PART * PART;
        let end = start + PART;
        let known = queue
            .streams
            .iter_mut()
            .find(|s| s.end == start && start > 0);
        let ahead = match known {
            Some(stream) => {
                stream.ahead = (stream.ahead * 2).clamp(PART, AHEAD_MAX);
                stream.end = end + stream.ahead;
                stream.ahead
            }
            None => {
                let next = queue.next_stream % STREAMS;
                queue.streams[next] = Stream { end, ahead: 0 };
                queue.next_stream += 1;
                0
            }
        };
        self.want_ahead(queue, start..end + ahead);
        self.dispatch(queue);
        slot
    }

    fn want_ahead(&self, queue: &mut Queue, chunks: Range<u64>) {
        for chunk in chunks.start..chunks.end.min(self.cache.len()) {
            if !queue.slots.contains_key(&chunk) && !self.cache.is_present(chunk) {
                queue.ahead.insert(chunk);
            }
        }
    }

    /// Starts requests as long as there are connections: for waiting readers first.
    fn dispatch(self: &Arc<Self>, queue: &mut Queue) {
        while queue.requests < self.connections {
            let Some(run) = queue.next_run() else {
                return;
            };
            for chunk in run.clone() {
                queue.demand.remove(&chunk);
                queue.ahead.remove(&chunk);
                queue.slots.entry(chunk).or_default();
            }
            queue.requests += 1;
            let this = Arc::clone(self);
            self.runtime.spawn(async move { this.run(run).await });
        }
    }

    async fn run(self: Arc<Self>, run: Range<u64>) {
        let (this, wanted) = (Arc::clone(&self), run.clone());
        // A task of its own, so that readers learn of a panic.
        let task = self.runtime.spawn(async move { this.get(&wanted).await });
        let result = match task.await {
            Ok(result) => result.map(Arc::new),
            Err(e) => Err(Error::new(Kind::Unavailable, &self.place, e)),
        };
        let mut queue = self.queue();
        queue.requests -= 1;
        for chunk in run {
            if let Some(slot) = queue.slots.remove(&chunk) {
                // No other task sets the result of this chunk.
                let _ = slot.set(result.clone());
            }
        }
        if let Err(e) = &result {
            // A server that is gone answers no other reader either. Each of them would wait for its own deadline.
            queue.ahead.clear();
            if e.kind() != Kind::Corrupt {
                for chunk in std::mem::take(&mut queue.demand) {
                    if let Some(slot) = queue.slots.remove(&chunk) {
                        let _ = slot.set(Err(e.clone()));
                    }
                }
            }
        }
        self.dispatch(&mut queue);
        drop(queue);
        self.finished.notify_all();
    }

    /// Fetches, verifies and stores a run of chunks.
    async fn get(self: &Arc<Self>, run: &Range<u64>) -> Result<Part> {
        let start = run.start * CHUNK;
        let end = (run.end * CHUNK).min(self.object.identity().size);
        let mut mismatch = String::new();
        for _ in 0..VERIFY_ATTEMPTS {
            let bytes = self.object.read(start..end).await?;
            let (this, first) = (Arc::clone(self), run.start);
            let work = move || this.keep(first, bytes);
            let kept = self.runtime.spawn_blocking(work).await;
            match kept.unwrap_or_else(|e| Err(e.to_string())) {
                Ok(part) => return Ok(part),
                Err(e) => mismatch = e,
            }
        }
        Err(Error::new(Kind::Corrupt, &self.place, mismatch))
    }

    /// Verifies and stores bytes. Returns the mismatch, if there is one.
    fn keep(&self, first: u64, bytes: Vec<u8>) -> Result<Part, String> {
        if let Some(verifier) = &self.verifier {
            let verified = verifier.verify(first * CHUNK, &bytes);
            verified.map_err(|e| format!("{e}, fetched {VERIFY_ATTEMPTS} times"))?;
        }
        // A full disk does not keep readers from what was fetched.
        let stored = self.cache.store(first, &bytes);
        let _ = stored.and_then(|stored| self.directory.charge(stored, &self.cache));
        Ok(Part { first, bytes })
    }
}

impl Queue {
    /// Next chunks to ask for in one request: around the first one that a reader waits for.
    fn next_run(&self) -> Option<Range<u64>> {
        let start = *self.demand.first().or_else(|| self.ahead.first())?;
        let is_wanted = |chunk: u64| self.demand.contains(&chunk) || self.ahead.contains(&chunk);
        let mut run = start..start + 1;
        let is_full = |run: &Range<u64>| run.end - run.start >= PART;
        while !is_full(&run) && run.start > 0 && is_wanted(run.start - 1) {
            run.start -= 1;
        }
        while !is_full(&run) && is_wanted(run.end) {
            run.end += 1;
        }
        Some(run)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adjacent_chunks_go_into_one_request() {
        let mut queue = Queue::default();
        assert_eq!(queue.next_run(), None);
        queue.demand.extend([20, 21, 30]);
        queue.ahead.extend([5, 18, 19, 22]);
        assert_eq!(queue.next_run(), Some(18..23));
        queue.ahead.extend(23..40);
        assert_eq!(queue.next_run(), Some(18..26));
        queue.demand.clear();
        assert_eq!(queue.next_run(), Some(5..6));
    }
}
