//! Requests for missing chunks.

use super::incomplete::Incomplete;
use super::pace::Started;
use super::queue::{FillFailure, Part, Priority, Queue, Slot};
use crate::cache::{CHUNK, Directory, ImageCache};
use crate::error::{Error, Kind, Result};
use crate::fetch::shared::SharedBlocks;
use crate::options::Options;
use crate::source::{Later, Object};
use crate::stats::Counters;
use crate::verify::Verifier;
use std::collections::HashMap;
use std::future::poll_fn;
use std::io;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::{Notify, OnceCell};

/// Number of times that bytes which do not match the root hash are fetched.
pub(crate) const VERIFY_ATTEMPTS: u32 = 3;

/// Number of chunks of a profile that are looked at: 16 GiB. A profile names ranges of an image whose size the server states.
const PREFETCH_MAX: usize = 1 << 17;

/// Number of requests for each late one that is repeated: at most 5 % are.
const REQUESTS_PER_HEDGE: u64 = 20;

/// Fetches chunks of one object into its cache.
pub(crate) struct Fetcher {
    object: Arc<dyn Object>,
    pub(super) cache: Arc<ImageCache>,
    directory: Arc<Directory>,
    verifier: Option<Arc<Verifier>>,
    place: String,
    pub(super) runtime: Handle,
    connections: usize,
    hedging: bool,
    /// Time after which a request for bytes that do not match is not repeated.
    deadline: Duration,
    /// Name of the image in the cache.
    key: String,
    /// Blocks of other images, found on the first request.
    shared: OnceCell<Option<SharedBlocks>>,
    pub(crate) counters: Counters,
    queue: Mutex<Queue>,
    finished: Condvar,
    /// Wakes the fill: a request ended, or the last waiting reader is done.
    pub(super) changed: Notify,
}

impl Fetcher {
    pub(crate) fn new(
        object: Arc<dyn Object>,
        (directory, key, cache): (Arc<Directory>, String, Arc<ImageCache>),
        verifier: Option<Arc<Verifier>>,
        place: String,
        runtime: Handle,
        options: &Options,
    ) -> Self {
        Self {
            object,
            cache,
            directory,
            verifier,
            place,
            runtime,
            connections: options.connections.clamp(1, Options::CONNECTIONS_MAX),
            hedging: options.hedging,
            deadline: options.retry.deadline,
            key,
            shared: OnceCell::new(),
            counters: Counters::default(),
            queue: Mutex::default(),
            finished: Condvar::new(),
            changed: Notify::new(),
        }
    }

    pub(super) fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Source of the chunks.
    pub(crate) fn object(&self) -> &dyn Object {
        &*self.object
    }

    /// True if the cache can hold the whole image.
    pub(super) fn has_room_for_all(&self) -> bool {
        self.directory.has_room_for(self.cache.size())
    }

    /// Wakes those who wait for a request to end.
    pub(super) fn notify(&self) {
        self.finished.notify_all();
    }

    /// Fetches a chunk and waits for it. Returns `None` if it is in the cache, and true with a chunk that was requested for
    /// this reader rather than before.
    pub(crate) fn fetch(self: &Arc<Self>, chunk: u64) -> Result<Option<(Arc<Part>, bool)>> {
        let mut queue = self.queue();
        let (slot, is_miss) = match queue.slots.get(&chunk) {
            Some(slot) => (Arc::clone(slot), false),
            // A request stores its chunks before it removes their slots.
            None if self.cache.is_present(chunk) => return Ok(None),
            None => (self.demand(&mut queue, chunk), true),
        };
        queue.waiting += 1;
        let result = loop {
            if let Some(result) = slot.get() {
                break result.clone();
            }
            queue = self
                .finished
                .wait(queue)
                .unwrap_or_else(PoisonError::into_inner);
        };
        queue.waiting -= 1;
        queue.last_wait = Some(Instant::now());
        if queue.waiting == 0 {
            self.changed.notify_one();
        }
        result.map(|part| Some((part, is_miss)))
    }

    /// Asks for chunks that a reader is expected to want, without waiting. Returns true if one was neither there nor
    /// requested.
    pub(crate) fn read_ahead(self: &Arc<Self>, chunks: Range<u64>) -> bool {
        let mut queue = self.queue();
        let is_miss = self.want_ahead(&mut queue, chunks);
        self.dispatch(&mut queue);
        is_miss
    }

    /// Asks for chunks in their order, after what readers want.
    pub(crate) fn prefetch(self: &Arc<Self>, chunks: impl Iterator<Item = Range<u64>>) {
        let mut queue = self.queue();
        for chunk in chunks.flatten().take(PREFETCH_MAX) {
            let is_wanted = chunk < self.cache.len()
                && !queue.slots.contains_key(&chunk)
                && !self.cache.is_present(chunk);
            if is_wanted && queue.profile.insert(chunk) {
                queue.profile_order.push_back(chunk);
            }
        }
        self.dispatch(&mut queue);
    }

    /// Bytes that are queued or requested ahead of readers.
    pub(crate) fn pending_bytes(&self) -> u64 {
        let queue = self.queue();
        let queued = (queue.ahead.len() + queue.profile.len()) as u64;
        queued * CHUNK + queue.in_flight.background_bytes
    }

    /// Ends the fill and drops what no reader waits for.
    pub(crate) fn close(&self) {
        let mut queue = self.queue();
        queue.is_closed = true;
        queue.clear_background();
        drop(queue);
        self.changed.notify_one();
    }

    /// Failure that ended the fill.
    pub(crate) fn failure(&self) -> Option<Error> {
        self.queue().fill.end.clone()
    }

    /// Waits until a request ends, but not longer than `timeout`.
    pub(crate) fn wait(&self, timeout: Duration) {
        // Spurious wake-ups do no harm: the caller looks again.
        drop(self.finished.wait_timeout(self.queue(), timeout));
    }

    /// Queues a chunk with its neighbours.
    fn demand(self: &Arc<Self>, queue: &mut Queue, chunk: u64) -> Slot {
        let slot = Slot::default();
        queue.slots.insert(chunk, Arc::clone(&slot));
        queue.ahead.remove(&chunk);
        queue.profile.remove(&chunk);
        queue.demand.insert(chunk);
        let around = queue.around(chunk);
        self.want_ahead(queue, around);
        self.dispatch(queue);
        slot
    }

    fn want_ahead(&self, queue: &mut Queue, chunks: Range<u64>) -> bool {
        let mut is_miss = false;
        for chunk in chunks.start..chunks.end.min(self.cache.len()) {
            if !queue.slots.contains_key(&chunk) && !self.cache.is_present(chunk) {
                is_miss |= queue.ahead.insert(chunk);
            }
        }
        is_miss
    }

    /// Length of a run of chunks. Unit: bytes.
    pub(super) fn run_len(&self, run: &Range<u64>) -> u64 {
        (run.end * CHUNK).min(self.cache.size()) - run.start * CHUNK
    }

    /// True if another request that no reader waits for may start. A quarter of the connections is left to readers. The
    /// fill has bandwidth x round trip in flight, a quarter of the usual: more would queue before what readers want.
    pub(super) fn has_room(&self, queue: &Queue, priority: Priority) -> bool {
        let connections = (self.connections * 3 / 4).max(1);
        let window = queue.pace.window(self.object.round_trip());
        let window = match priority {
            Priority::Fill => window / 4,
            Priority::Demand | Priority::Prefetch => window,
        };
        queue.in_flight.all() < connections && queue.in_flight.background_bytes < window
    }

    /// Starts requests as long as there are connections: for waiting readers first.
    fn dispatch(self: &Arc<Self>, queue: &mut Queue) {
        while queue.in_flight.all() < self.connections {
            let background = self.has_room(queue, Priority::Prefetch);
            let Some((run, priority)) = queue.next_run(background) else {
                return;
            };
            self.start(queue, run, priority);
        }
    }

    /// Starts a request for a run of chunks.
    pub(super) fn start(self: &Arc<Self>, queue: &mut Queue, run: Range<u64>, priority: Priority) {
        queue.take(run.clone());
        match priority {
            Priority::Demand => queue.in_flight.demand += 1,
            Priority::Prefetch | Priority::Fill => {
                queue.in_flight.background += 1;
                queue.in_flight.background_bytes += self.run_len(&run);
            }
        }
        let started = queue.pace.start();
        let this = Arc::clone(self);
        self.runtime
            .spawn(async move { this.run(run, priority, started).await });
    }

    async fn run(self: Arc<Self>, run: Range<u64>, priority: Priority, started: Started) {
        let (this, requested) = (Arc::clone(&self), run.clone());
        // A task of its own, so that readers learn of a panic.
        let task = self
            .runtime
            .spawn(async move { this.get(&requested, priority, started).await });
        let result = match task.await {
            Ok(result) => result.map(Arc::new),
            Err(e) => Err(self.error(Kind::Unavailable, &run, e)),
        };
        let mut queue = self.queue();
        match priority {
            Priority::Demand => queue.in_flight.demand -= 1,
            Priority::Prefetch | Priority::Fill => {
                queue.in_flight.background -= 1;
                queue.in_flight.background_bytes -= self.run_len(&run);
            }
        }
        if priority == Priority::Fill {
            queue.fill.in_flight -= 1;
        }
        for chunk in run {
            if let Some(slot) = queue.slots.remove(&chunk) {
                // No other task sets the result of this chunk.
                let _ = slot.set(result.clone());
            }
        }
        match &result {
            Err(e) => self.fail(&mut queue, e, priority),
            Ok(_) if priority == Priority::Fill => queue.fill.failures = 0,
            Ok(_) => {}
        }
        self.dispatch(&mut queue);
        drop(queue);
        self.finished.notify_all();
        self.changed.notify_one();
    }

    /// Deals with what else waits for a request like one that failed.
    fn fail(&self, queue: &mut Queue, e: &Error, priority: Priority) {
        self.counters.failed.fetch_add(1, Ordering::Relaxed);
        if priority == Priority::Fill {
            queue.fill.failures += 1;
            queue.fill.failed = Some(FillFailure {
                error: e.clone(),
                is_final: e.kind() != Kind::Unavailable,
            });
        }
        if e.kind() == Kind::Corrupt {
            return;
        }
        // A server that is gone answers no other reader either. Each of them would wait for its own deadline.
        queue.clear_background();
        for chunk in std::mem::take(&mut queue.demand) {
            if let Some(slot) = queue.slots.remove(&chunk) {
                let _ = slot.set(Err(e.clone()));
            }
        }
    }

    fn error(&self, kind: Kind, run: &Range<u64>, what: impl std::fmt::Display) -> Error {
        let start = run.start * CHUNK;
        let last = start + self.run_len(run) - 1;
        Error::new(
            kind,
            &self.place,
            format_args!("bytes {start} to {last}: {what}"),
        )
    }

    /// Fetches, verifies and stores a run of chunks.
    async fn get(
        self: &Arc<Self>,
        run: &Range<u64>,
        priority: Priority,
        started: Started,
    ) -> Result<Part> {
        let mut part = self.copy_shared(run).await;
        let mut mismatch = String::new();
        for _ in 0..VERIFY_ATTEMPTS {
            let missing = part.missing.clone();
            if !missing.is_empty() {
                let request = self.request(&missing, priority, started);
                // The first request keeps the deadline by itself.
                let left = match mismatch.is_empty() {
                    true => Duration::MAX,
                    false => self.deadline.saturating_sub(started.at.elapsed()),
                };
                let Ok(bytes) = tokio::time::timeout(left, request).await else {
                    break;
                };
                let bytes = bytes.map_err(|e| self.error(e.kind(), &missing, e.what()))?;
                part.fill(bytes);
            }
            let this = Arc::clone(self);
            let work = move || this.keep(part, priority);
            let kept = self.runtime.spawn_blocking(work).await;
            let kept = kept.map_err(|e| self.error(Kind::Unavailable, run, e))?;
            part = match kept {
                Ok(part) => return Ok(part),
                Err(unkept) => {
                    let (same, e) = *unkept;
                    mismatch = e;
                    same
                }
            };
        }
        Err(self.error(Kind::Corrupt, run, mismatch))
    }

    /// Copies chunks that other images in the cache have. The rest is missing.
    async fn copy_shared(self: &Arc<Self>, run: &Range<u64>) -> Incomplete {
        let nothing = Incomplete::new(run, self.run_len(run));
        let Some(verifier) = &self.verifier else {
            return nothing;
        };
        let find = || async {
            let (this, verifier) = (Arc::clone(self), Arc::clone(verifier));
            let work = move || SharedBlocks::find(&this.directory, &this.key, &verifier);
            self.runtime.spawn_blocking(work).await.unwrap_or_default()
        };
        if self.shared.get_or_init(find).await.is_none() {
            return nothing;
        }
        let this = Arc::clone(self);
        let work = move || this.copy_chunks(nothing);
        let copied = self.runtime.spawn_blocking(work).await;
        copied.unwrap_or_else(|_| Incomplete::new(run, self.run_len(run)))
    }

    fn copy_chunks(&self, mut part: Incomplete) -> Incomplete {
        let Some(Some(shared)) = self.shared.get() else {
            return part;
        };
        let copied = part.copy(|chunk| shared.chunk(chunk));
        let counter = &self.counters.shared_bytes;
        counter.fetch_add(copied, Ordering::Relaxed);
        part
    }

    /// Reads a run of chunks from the source. A late answer that a reader waits for is requested again.
    async fn request(
        &self,
        run: &Range<u64>,
        priority: Priority,
        started: Started,
    ) -> Result<Vec<u8>> {
        let start = run.start * CHUNK;
        let range = start..start + self.run_len(run);
        self.counters.requests.fetch_add(1, Ordering::Relaxed);
        let is_demand = priority == Priority::Demand;
        let mut first = self.object.read(range.clone());
        let late_after = match is_demand {
            true if self.hedging => self.queue().pace.late_after(),
            _ => None,
        };
        let bytes = match late_after {
            None => first.await?,
            Some(late_after) => match tokio::time::timeout(late_after, &mut first).await {
                Ok(result) => result?,
                Err(_) if self.may_hedge() => race(first, self.object.read(range)).await?,
                Err(_) => first.await?,
            },
        };
        let len = bytes.len() as u64;
        self.counters
            .fetched_bytes
            .fetch_add(len, Ordering::Relaxed);
        let duration = started.at.elapsed();
        let mut queue = self.queue();
        queue.pace.finish(started, len, duration, is_demand);
        Ok(bytes)
    }

    /// Counts another request for the same bytes, if there are not too many of them.
    fn may_hedge(&self) -> bool {
        let requests = self.counters.requests.load(Ordering::Relaxed);
        let allowed = requests / REQUESTS_PER_HEDGE;
        let add = |hedged: u64| (hedged < allowed).then_some(hedged + 1);
        let hedged = &self.counters.hedged;
        hedged
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, add)
            .is_ok()
    }

    /// Verifies what was fetched, and stores all of it. Returns the mismatch, if there is one.
    fn keep(
        &self,
        part: Incomplete,
        priority: Priority,
    ) -> Result<Part, Box<(Incomplete, String)>> {
        if let Some(verifier) = &self.verifier {
            let fetched = part.missing_bytes();
            if let Err(e) = verifier.verify(part.missing.start * CHUNK, fetched) {
                let what = format!("{e}, fetched up to {VERIFY_ATTEMPTS} times");
                return Err(Box::new((part, what)));
            }
        }
        let Incomplete {
            first,
            bytes,
            places,
            ..
        } = part;
        // A full disk does not keep readers from what was fetched.
        let stored = self.store(first, &bytes, &places, priority);
        if let (Err(e), Priority::Fill) = (stored, priority) {
            self.queue().fill.failed = Some(FillFailure {
                error: self.fill_error(format_args!("cannot keep more in the cache: {e}")),
                is_final: true,
            });
        }
        Ok(Part { first, bytes })
    }

    /// Stores bytes. `places`: places of chunks in other images.
    fn store(
        &self,
        first: u64,
        bytes: &[u8],
        places: &HashMap<u64, (usize, u64)>,
        priority: Priority,
    ) -> io::Result<()> {
        let shared = self.shared.get().and_then(Option::as_ref);
        let source = |chunk: u64| {
            let (image, at) = places.get(&chunk)?;
            Some((shared?.image(*image), *at))
        };
        let stored = self.cache.store_from(first, bytes, source)?;
        // The fill evicts no chunk of an image in use.
        let image = (priority != Priority::Fill).then_some(&*self.cache);
        match self.directory.charge(stored, image)? {
            true => Ok(()),
            false => Err(io::Error::other(
                "it is full of images in use; make it larger with --cache-max SIZE",
            )),
        }
    }

    /// Error that ends the fill.
    pub(super) fn fill_error(&self, why: impl std::fmt::Display) -> Error {
        let what = format_args!("the background fill stops: {why}");
        Error::new(Kind::Unavailable, &self.place, what)
    }
}

/// Result of `first`, or of `second` if that succeeds before. A failure of `second` is of no interest.
async fn race<T>(mut first: Later<'_, Result<T>>, second: Later<'_, Result<T>>) -> Result<T> {
    let mut second = Some(second);
    poll_fn(|context| {
        if let Poll::Ready(result) = first.as_mut().poll(context) {
            return Poll::Ready(result);
        }
        let polled = second.as_mut().map(|second| second.as_mut().poll(context));
        match polled {
            Some(Poll::Ready(Ok(value))) => Poll::Ready(Ok(value)),
            Some(Poll::Ready(Err(_))) => {
                second = None;
                Poll::Pending
            }
            Some(Poll::Pending) | None => Poll::Pending,
        }
    })
    .await
}
