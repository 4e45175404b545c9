//! Requests for missing chunks.

use super::chunks::Request;
use super::queue::{FillFailure, OwnSlot, PART_MAX, Priority, Queue, Slot};
use super::shared::SharedBlocks;
use crate::cache::{Directory, ImageCache, LONG_CHUNK};
use crate::client::link::{Link, Pace, STEP_MIN, Turn};
use crate::error::{Error, Kind, Result};
use crate::options::Options;
use crate::source::Object;
use crate::stats::Counters;
use crate::verify::Verifier;
use std::cell::Cell;
use std::collections::HashSet;
use std::ops::Range;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::OnceCell;

/// Bytes of the chunks of a profile that are looked at. A profile names ranges of an image whose size the server states.
const PREFETCH_MAX: u64 = 16 << 30;

/// Largest number of bytes that the list of an image causes and no program reads: a share of the image, and this. Unit: bytes.
const UNREAD_SHARE: u64 = 3;
const UNREAD_MAX: u64 = 64 << 20;

/// Bytes of the chunks of a list that are asked for, and number of chunks that are looked at for them: ranges may overlap.
const LISTED_MAX: u64 = 1 << 30;
const LOOKED_AT_MAX: usize = 1 << 20;

/// Longest time between two looks at the queue.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Callback after a request that a reader waits for.
type OnMiss = Arc<dyn Fn(u64) + Send + Sync>;

thread_local! {
    /// True if reads of this thread fail for chunks that are absent.
    static NEVER_WAITS: Cell<bool> = const { Cell::new(false) };
}

/// Lets reads of this thread fail for bytes that are not in the cache. They are requested as neighbours are, unless a profile or list
/// is being fetched.
pub(crate) fn never_wait_in_this_thread() {
    NEVER_WAITS.set(true);
}

/// Fetches chunks of one object into its cache.
pub(crate) struct Fetcher {
    pub(super) object: Arc<dyn Object>,
    pub(super) cache: Arc<ImageCache>,
    pub(super) directory: Arc<Directory>,
    pub(super) verifier: Option<Arc<Verifier>>,
    pub(super) place: String,
    pub(super) runtime: Handle,
    connections: usize,
    pub(super) hedging: bool,
    /// Time after which a request for bytes that do not match is not repeated.
    pub(super) deadline: Duration,
    /// Name of the image in the cache.
    pub(super) key: String,
    /// Blocks of other images, found on the first request.
    pub(super) shared: OnceCell<Option<SharedBlocks>>,
    pub(crate) counters: Counters,
    queue: Mutex<Queue>,
    pub(super) finished: Condvar,
    on_miss: OnceLock<OnMiss>,
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
        let queue = Queue::new(cache.chunk_size());
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
            queue: Mutex::new(queue),
            finished: Condvar::new(),
            on_miss: OnceLock::new(),
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

    pub(super) fn link(&self) -> &Arc<Link> {
        self.object.link()
    }

    /// Length of a chunk. Unit: bytes.
    pub(super) fn chunk_size(&self) -> u64 {
        self.cache.chunk_size()
    }

    /// Fetches chunks that a reader wants and waits for the first of them, unless the thread never waits. Returns `None` if that is in
    /// the cache, and true with a chunk that was requested for this reader rather than before.
    pub(crate) fn fetch(
        self: &Arc<Self>,
        needed: Range<u64>,
    ) -> Result<Option<(Arc<Vec<u8>>, bool)>> {
        let chunk = needed.start;
        let mut queue = self.queue();
        if !queue.slots.contains_key(&chunk) && self.cache.is_present(chunk) {
            // A request stores its chunks before it removes their slots.
            return Ok(None);
        }
        if NEVER_WAITS.get() {
            let is_known = queue.slots.contains_key(&chunk) || queue.is_wanted(chunk);
            if !is_known && !queue.has_list() {
                queue.near.push(chunk);
                self.dispatch(&mut queue);
            }
            return Err(self.error(
                Kind::Unavailable,
                &(chunk..chunk + 1),
                "is not in the cache",
            ));
        }
        let waiting = self.link().wait();
        queue.note_wanted(chunk, |chunk| self.cache.was_read(chunk));
        let (slot, is_miss) = match queue.slots.get(&chunk) {
            Some(slot) => (Arc::clone(slot), false),
            None => (self.demand(&mut queue, needed), true),
        };
        if is_miss {
            drop(queue);
            self.report_miss(chunk * self.chunk_size());
            queue = self.queue();
        }
        let result = loop {
            if let Some(result) = slot.get() {
                break result.clone();
            }
            queue = self
                .finished
                .wait(queue)
                .unwrap_or_else(PoisonError::into_inner);
        };
        drop(queue);
        drop(waiting);
        result.map(|bytes| Some((bytes, is_miss)))
    }

    /// Asks for chunks that a reader is expected to want, without waiting. Returns true if one was neither there nor
    /// requested.
    pub(crate) fn read_ahead(self: &Arc<Self>, chunks: Range<u64>) -> bool {
        let mut queue = self.queue();
        let is_miss = self.want_ahead(&mut queue, chunks);
        self.dispatch(&mut queue);
        is_miss
    }

    /// Asks for chunks of a profile in their order, after what readers want. It replaces the list that came with the image.
    pub(crate) fn prefetch(self: &Arc<Self>, chunks: impl Iterator<Item = Range<u64>>) {
        let absent = self.absent(chunks, PREFETCH_MAX);
        let mut queue = self.queue();
        queue.list.clear();
        for chunk in absent {
            if !queue.slots.contains_key(&chunk) {
                queue.profile.push(chunk);
            }
        }
        self.dispatch(&mut queue);
    }

    /// Asks for chunks of a list that came with the image, in their order, after the profile. What it causes and no program
    /// reads has a bound.
    pub(crate) fn prefetch_list(self: &Arc<Self>, chunks: impl Iterator<Item = Range<u64>>) {
        let unread_max = (self.cache.size() / UNREAD_SHARE).min(UNREAD_MAX);
        let absent = self.absent(chunks, LISTED_MAX);
        let mut queue = self.queue();
        // Fits: at most 2048.
        queue.list_use.unread_max = (unread_max / self.chunk_size()) as usize;
        for chunk in absent {
            if !queue.slots.contains_key(&chunk) {
                queue.list.push(chunk);
            }
        }
        self.dispatch(&mut queue);
    }

    /// Chunks of ranges, at most `max` bytes of them, that are not in the cache, each once. Readers do not wait meanwhile.
    fn absent(&self, chunks: impl Iterator<Item = Range<u64>>, max: u64) -> Vec<u64> {
        let max = (max / self.chunk_size()) as usize; // fits: at most 2^19
        let (mut absent, mut seen) = (Vec::new(), HashSet::new());
        for chunk in chunks.flatten().take(LOOKED_AT_MAX) {
            if seen.len() >= max {
                break;
            }
            let is_new = chunk < self.cache.len() && seen.insert(chunk);
            if is_new && !self.cache.is_present(chunk) {
                absent.push(chunk);
            }
        }
        absent
    }

    /// Asks for neighbours of what was read, after the profile and the list: those that cross the link in a second.
    pub(crate) fn prefetch_near(self: &Arc<Self>, chunks: impl Iterator<Item = Range<u64>>) {
        let second = self.link().pace().in_a_second() / self.chunk_size();
        // Fits: limited by the queue as well.
        let max = usize::try_from(second).unwrap_or(usize::MAX);
        let mut queue = self.queue();
        let max = max.min(queue.neighbours_max());
        for chunk in chunks.flatten().take(LOOKED_AT_MAX) {
            if queue.near.len() >= max {
                break;
            }
            let is_known = queue.slots.contains_key(&chunk) || queue.is_wanted(chunk);
            if chunk < self.cache.len() && !is_known && !self.cache.is_present(chunk) {
                queue.near.push(chunk);
            }
        }
        self.dispatch(&mut queue);
    }

    /// Sets the callback after a request that a reader waits for.
    pub(crate) fn on_miss(&self, callback: OnMiss) {
        // Only the first one counts.
        let _ = self.on_miss.set(callback);
    }

    /// Reports a request that this thread waits for, once it is sent.
    pub(crate) fn report_miss(&self, pos: u64) {
        if let Some(on_miss) = self.on_miss.get() {
            on_miss(pos);
        }
    }

    /// Bytes that are queued or requested ahead of readers.
    pub(crate) fn pending_bytes(&self) -> u64 {
        let queue = self.queue();
        queue.queued() as u64 * self.chunk_size() + queue.in_flight.background_bytes
    }

    /// Ends the fill and drops what no reader waits for.
    pub(crate) fn close(&self) {
        let mut queue = self.queue();
        queue.is_closed = true;
        queue.clear_background();
        drop(queue);
        self.link().changed.notify_waiters();
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

    /// Queues chunks that a reader wants, the first of which is absent, with what follows them.
    fn demand(self: &Arc<Self>, queue: &mut Queue, needed: Range<u64>) -> Slot {
        let slot = Slot::default();
        queue.slots.insert(needed.start, Arc::clone(&slot));
        queue.demand(needed.start);
        for chunk in needed.start + 1..needed.end.min(self.cache.len()) {
            if !queue.slots.contains_key(&chunk) && !self.cache.is_present(chunk) {
                queue.slots.insert(chunk, Slot::default());
                queue.demand(chunk);
            }
        }
        let pace = self.link().pace();
        let near = self.chunks_of(pace.around());
        let least = self.chunks_of(pace.least().min(LONG_CHUNK));
        let around = queue.around(&needed, near, least);
        self.want_ahead(queue, around);
        self.dispatch(queue);
        slot
    }

    /// Number of chunks that a number of bytes is next to, at least 1.
    fn chunks_of(&self, bytes: u64) -> u64 {
        let chunk = self.chunk_size();
        (bytes.saturating_add(chunk / 2) / chunk).clamp(1, PART_MAX / chunk)
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
        let end = (run.end * self.chunk_size()).min(self.cache.size());
        end.saturating_sub(run.start * self.chunk_size())
    }

    /// True if another request that no reader waits for may have a connection. A quarter of them is left to readers.
    pub(super) fn has_connection(&self, queue: &Queue) -> bool {
        queue.in_flight.all() < (self.connections * 3 / 4).max(1)
    }

    /// Starts requests: those of waiting readers as long as there are connections, then others as the link has room. A task
    /// goes on with these.
    fn dispatch(self: &Arc<Self>, queue: &mut Queue) {
        self.start_all(queue);
        if !queue.is_pumping && !queue.is_closed && queue.next_background().is_some() {
            queue.is_pumping = true;
            let this = Arc::clone(self);
            self.runtime.spawn(async move { this.pump().await });
        }
    }

    /// Starts requests that no reader waits for, until there are none.
    async fn pump(self: &Arc<Self>) {
        loop {
            let mut changed = pin!(self.link().changed.notified());
            // A change from here on counts.
            changed.as_mut().enable();
            let pause = {
                let mut queue = self.queue();
                let pause = self.start_all(&mut queue);
                if queue.is_closed || queue.next_background().is_none() {
                    queue.is_pumping = false;
                    return;
                }
                pause
            };
            let pause = pause.unwrap_or(POLL_INTERVAL).min(POLL_INTERVAL);
            let _ = tokio::time::timeout(pause, changed).await;
        }
    }

    /// Starts all requests that may start. Returns the time after which another one may, if it is known.
    fn start_all(self: &Arc<Self>, queue: &mut Queue) -> Option<Duration> {
        let pace = self.link().pace();
        while queue.in_flight.all() < self.connections {
            if let Some(chunk) = queue.demand.first() {
                let max = self.chunks_of(pace.around().max(pace.part()).max(LONG_CHUNK));
                let run = queue.run_at(*chunk, max, Priority::Demand);
                self.start(queue, run, Priority::Demand);
                continue;
            }
            if !self.has_connection(queue) {
                return None;
            }
            let (chunk, priority, purpose) = queue.next_background()?;
            let gap = match priority {
                Priority::Profile | Priority::List => pace.gap() / self.chunk_size(),
                _ => 0,
            };
            let run = queue.run_over_gaps(chunk, self.part(pace), priority, gap, |chunk| {
                !self.cache.is_present(chunk)
            });
            let len = self.run_len(&run).min(pace.step());
            match self.link().turn(purpose, len) {
                Turn::Go => self.start(queue, run, priority),
                Turn::Wait(pause) => return pause,
            }
        }
        None
    }

    /// Number of chunks in a request that no reader waits for.
    pub(super) fn part(&self, pace: Pace) -> u64 {
        self.chunks_of(pace.part())
    }

    /// Starts a request for a run of chunks.
    pub(super) fn start(self: &Arc<Self>, queue: &mut Queue, run: Range<u64>, priority: Priority) {
        let slots = queue.take(run.clone(), priority);
        let step = match priority {
            Priority::Demand | Priority::Ahead => u64::MAX,
            _ => self.step(&run),
        };
        let flight = match priority {
            Priority::Demand => {
                queue.in_flight.demand += 1;
                self.link().demand(self.run_len(&run))
            }
            _ => {
                queue.in_flight.background += 1;
                queue.in_flight.background_bytes += self.run_len(&run);
                let first = self.run_len(&run).min(step);
                self.link().background(first)
            }
        };
        let request = Request {
            run,
            priority,
            slots,
            step,
            flight: Arc::new(flight),
            started: Instant::now(),
        };
        let this = Arc::clone(self);
        self.runtime
            .spawn(async move { this.run(Arc::new(request)).await });
    }

    /// Bytes of a run after which readers go first, if what is left after them is worth a request.
    fn step(&self, run: &Range<u64>) -> u64 {
        let step = self.link().pace().step();
        match self.run_len(run) < step.saturating_add(STEP_MIN) {
            true => u64::MAX,
            false => step,
        }
    }

    async fn run(self: Arc<Self>, request: Arc<Request>) {
        let (this, same) = (Arc::clone(&self), Arc::clone(&request));
        // A task of its own, so that readers learn of a panic.
        let task = self.runtime.spawn(async move { this.get(&same).await });
        let (run, priority) = (request.run.clone(), request.priority);
        let slots = request.slots.clone();
        let result = match task.await {
            Ok(result) => result,
            Err(e) => Err(self.error(Kind::Unavailable, &run, e)),
        };
        // Its bytes are not in flight any more.
        drop(request);
        let mut queue = self.queue();
        match priority {
            Priority::Demand => queue.in_flight.demand -= 1,
            _ => {
                queue.in_flight.background -= 1;
                queue.in_flight.background_bytes -= self.run_len(&run);
            }
        }
        if priority == Priority::Fill {
            queue.fill.in_flight -= 1;
        }
        self.settle(&mut queue, (run, slots), priority, &result);
        match &result {
            Err(e) if e.is_refused() => {}
            Err(e) => self.fail(&mut queue, e, priority),
            Ok(()) if priority == Priority::Fill => queue.fill.failures = 0,
            Ok(()) => {}
        }
        self.dispatch(&mut queue);
        drop(queue);
        self.finished.notify_all();
        self.link().changed.notify_waiters();
    }

    /// Settles chunks that a request has not delivered.
    fn settle(
        &self,
        queue: &mut Queue,
        (run, slots): (Range<u64>, Vec<OwnSlot>),
        priority: Priority,
        result: &Result<()>,
    ) {
        let own: Vec<(u64, OwnSlot)> = run.clone().zip(slots).collect();
        for (chunk, own) in own.into_iter().rev() {
            // A chunk that was delivered and evicted may have a slot of another request.
            let slot = queue.slots.get(&chunk);
            if slot.is_none_or(|slot| Arc::as_ptr(slot) != own.as_ptr()) {
                continue;
            }
            let Some(slot) = queue.slots.remove(&chunk) else {
                continue;
            };
            match result {
                Err(e) if e.is_refused() => {
                    // A reader that waits for the chunk asks for it itself.
                    let has_reader = Arc::strong_count(&slot) > 1;
                    if has_reader {
                        queue.slots.insert(chunk, slot);
                        queue.put_back(chunk, Priority::Demand);
                    } else {
                        queue.put_back(chunk, priority);
                    }
                }
                Err(e) => _ = slot.set(Err(e.clone())),
                Ok(()) => {
                    let e = self.error(Kind::Unavailable, &run, "bug: a chunk was not fetched");
                    let _ = slot.set(Err(e));
                }
            }
        }
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

    pub(super) fn error(
        &self,
        kind: Kind,
        run: &Range<u64>,
        what: impl std::fmt::Display,
    ) -> Error {
        let start = run.start * self.chunk_size();
        let last = start + self.run_len(run) - 1;
        Error::new(
            kind,
            &self.place,
            format_args!("bytes {start} to {last}: {what}"),
        )
    }

    /// Error that ends the fill.
    pub(super) fn fill_error(&self, why: impl std::fmt::Display) -> Error {
        let what = format_args!("the background fill stops: {why}");
        Error::new(Kind::Unavailable, &self.place, what)
    }
}
