//! Cache of decoded clusters with single-flight decoding: at most one thread decodes a cluster.
//!
//! ```text
//!  begin(key) ─► CachedCluster   hit
//!             ─► Busy            another thread decodes it: continue elsewhere, or wait
//!             ─► Lead            miss: decode it, then publish or fail; both wake the waiting threads
//!
//!  published ─► probation ─► main          used again                        (S3-FIFO)
//!                   │    └─► evicted       its fingerprint is kept: the next publication goes to main
//!                   └─► returned           every byte was returned once: the reader has it; evicted first
//!  pinned: in no queue
//! ```
//!
//! Invariants:
//!
//! * Nothing is decoded under a lock. The lock of the queues is taken before that of a shard, never
//!   after it.
//! * While a cached cluster is in the table, it is either in exactly one queue or pinned.
//! * A leader that fails or panics leaves no entry: the next thread that requests the cluster
//!   leads.

use super::buffer_pool::{BufferPool, PoolBuffer};
use crate::read::ClusterCoding;
use hashbrown::{DefaultHashBuilder, HashMap};
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Cache key of a cluster: position in the unified address space, length on disk, coding.
pub(crate) type Key = (u64, u32, ClusterCoding);

/// Number of table shards, each with a lock.
const SHARDS: usize = 16;

/// Number of slots for fingerprints of evicted clusters, and for those of partly decoded ones.
const FINGERPRINTS: usize = 1 << 12;

/// Maximum size of clusters that were returned completely: what fits the CPU cache. Unit: bytes.
const RETURNED_MAX: usize = 2 << 20;

/// Saturation value of a cluster's use counter.
const USED_MAX: u8 = 3;

/// Decoded content of a cluster.
pub(crate) struct CachedCluster {
    key: Key,
    slab: PoolBuffer,
    /// Number of decoded bytes, from the start of the buffer.
    len: usize,
    pinned: bool,
    /// Number of returned bytes. Bytes that are returned repeatedly count each time.
    returned: AtomicUsize,
    /// End of the last returned range. `UNTOUCHED` before the first one.
    next: AtomicUsize,
    /// Number of uses that did not continue at the end of the previous one, up to `USED_MAX`.
    used: AtomicU8,
    /// Node in the queues, `NO_NODE` for none. Written under the lock of the queues.
    node: AtomicU32,
}

const NO_NODE: u32 = u32::MAX;

/// Value of `next` before the first use.
const UNTOUCHED: usize = usize::MAX;

impl CachedCluster {
    /// Decoded bytes of the cluster.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.slab[..self.len]
    }

    /// True if the cluster is never evicted.
    pub(crate) fn is_pinned(&self) -> bool {
        self.pinned
    }

    /// Creates a cluster with these bytes that is in no cache.
    #[cfg(test)]
    pub(crate) fn from_bytes(bytes: &[u8]) -> Arc<Self> {
        let cache = ClusterCache::new(BufferPool::new(1 << 20), 1 << 20);
        let mut slab = cache.slab(bytes.len()).unwrap();
        slab[..bytes.len()].copy_from_slice(bytes);
        let Lookup::Lead(flight) = cache.begin((0, 0, ClusterCoding::Stored), |_| true, true)
        else {
            unreachable!("an empty cache")
        };
        flight.publish(slab, bytes.len(), false)
    }
}

enum Slot {
    /// A thread decodes the cluster.
    Busy,
    CachedCluster(Arc<CachedCluster>),
}

#[derive(Default)]
struct Shard {
    table: Mutex<Table>,
    changed: Condvar,
}

#[derive(Default)]
struct Table {
    slots: HashMap<Key, Slot>,
    /// Number of threads that wait for a cluster of this shard.
    waiting: usize,
}

/// Result of a lookup: a hit, a cluster that another thread decodes, or the duty to decode it.
pub(crate) enum Lookup<'a> {
    CachedCluster(Arc<CachedCluster>),
    Busy,
    Lead(Flight<'a>),
}

/// Cache of decoded clusters, by key.
pub(crate) struct ClusterCache {
    shards: [Shard; SHARDS],
    hasher: DefaultHashBuilder,
    queues: Mutex<Queues>,
    /// Clusters that were evicted from probation.
    ghosts: Fingerprints,
    /// Clusters that were decoded only in part.
    touched: Fingerprints,
    reuse: ReuseStatistics,
    /// Number of clusters that were candidates for a push.
    push_candidates: AtomicUsize,
    slabs: Arc<BufferPool>,
    /// Maximum size of pool buffers in use. Unit: bytes.
    limit: usize,
    dropped: AtomicUsize,
    pinned: AtomicUsize,
    waits: AtomicUsize,
}

impl ClusterCache {
    /// Creates a cache that evicts clusters to keep the used buffers of `slabs` within `limit`
    /// bytes.
    pub(crate) fn new(slabs: Arc<BufferPool>, limit: usize) -> Self {
        Self {
            shards: std::array::from_fn(|_| Shard::default()),
            hasher: DefaultHashBuilder::default(),
            queues: Mutex::default(),
            ghosts: Fingerprints::new(),
            touched: Fingerprints::new(),
            reuse: ReuseStatistics::default(),
            push_candidates: AtomicUsize::new(0),
            slabs,
            limit,
            dropped: AtomicUsize::new(0),
            pinned: AtomicUsize::new(0),
            waits: AtomicUsize::new(0),
        }
    }

    /// Looks up a cluster and starts decoding it on a miss. A cached cluster that does not satisfy
    /// `suits` is replaced. With `wait`, never returns `Busy`.
    pub(crate) fn begin(&self, key: Key, suits: impl Fn(&[u8]) -> bool, wait: bool) -> Lookup<'_> {
        let shard = self.shard(&key);
        let mut table = lock(&shard.table);
        loop {
            match table.slots.get(&key) {
                Some(Slot::CachedCluster(held)) if suits(held.bytes()) => {
                    return Lookup::CachedCluster(held.clone());
                }
                Some(Slot::Busy) if !wait => return Lookup::Busy,
                Some(Slot::Busy) => {
                    self.waits.fetch_add(1, Ordering::Relaxed);
                    table.waiting += 1;
                    table = shard
                        .changed
                        .wait(table)
                        .unwrap_or_else(PoisonError::into_inner);
                    table.waiting -= 1;
                }
                _ => break,
            }
        }
        let old = table.slots.insert(key, Slot::Busy);
        drop(table);
        if let Some(Slot::CachedCluster(old)) = old {
            if old.pinned {
                self.pinned.fetch_sub(old.slab.len(), Ordering::Relaxed);
            }
            lock(&self.queues).remove(&old);
        }
        Lookup::Lead(Flight { cache: self, key })
    }

    /// Records that bytes `[from, from + n)` of a cached cluster were returned.
    pub(crate) fn touch(&self, held: &CachedCluster, from: usize, n: usize) {
        let last = held.next.swap(from + n, Ordering::Relaxed);
        if last != from && last != UNTOUCHED {
            let used = held.used.load(Ordering::Relaxed);
            if used < USED_MAX {
                held.used.store(used + 1, Ordering::Relaxed);
            }
        }
        let before = held.returned.fetch_add(n, Ordering::Relaxed);
        if before < held.len && before + n >= held.len {
            // Every byte was returned: the reader has all of it.
            held.used.store(0, Ordering::Relaxed);
            let mut queues = lock(&self.queues);
            if queues.move_to(held, Queue::Returned) {
                let bound = RETURNED_MAX.min(self.limit / 8);
                while queues.lists[Queue::Returned as usize].bytes > bound {
                    self.drop_from(&mut queues, Queue::Returned);
                }
            }
        }
    }

    /// Returns a buffer for `len` decoded bytes and evicts clusters for it. `None` if the buffer is
    /// longer than an eighth of the limit and does not fit beside the buffers in use.
    pub(crate) fn slab(&self, len: usize) -> Option<PoolBuffer> {
        let cost = BufferPool::cost(len);
        self.make_room(cost, self.limit);
        let short = cost <= self.limit / 8;
        (short || self.slabs.used() + cost <= self.limit).then(|| self.slabs.take(len))
    }

    /// Returns a buffer for `len` compressed bytes, at most 1 MiB, and evicts clusters for it.
    pub(crate) fn slab_for_input(&self, len: usize) -> PoolBuffer {
        self.make_room(BufferPool::cost(len), self.limit);
        self.slabs.take(len)
    }

    /// True if a cluster of `len` decoded bytes may be cached.
    pub(crate) fn fits(&self, len: usize) -> bool {
        BufferPool::cost(len) <= self.limit / 8 * 7
    }

    /// Evicts clusters until buffers for `more` bytes fit into `limit`, or nothing is left to
    /// evict.
    pub(crate) fn make_room(&self, more: usize, limit: usize) {
        if self.slabs.used() + more <= limit {
            return;
        }
        let mut queues = lock(&self.queues);
        // Probation is guaranteed a tenth of the limit. Main uses all that probation leaves.
        while self.slabs.used() + more > limit {
            let bytes = |queue: Queue| queues.lists[queue as usize].bytes;
            let from = if bytes(Queue::Returned) > 0 {
                Queue::Returned
            } else if bytes(Queue::Probation) > limit / 10 || bytes(Queue::Main) == 0 {
                Queue::Probation
            } else {
                Queue::Main
            };
            if !self.drop_from(&mut queues, from) {
                return;
            }
        }
    }

    /// Number of clusters that were evicted to make room.
    pub(crate) fn dropped(&self) -> usize {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Memory of pinned clusters. Unit: bytes.
    pub(crate) fn pinned(&self) -> usize {
        self.pinned.load(Ordering::Relaxed)
    }

    /// Maximum size of the used buffers, pinned clusters included. Unit: bytes.
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// Number of times that a thread waited for another one.
    pub(crate) fn waits(&self) -> usize {
        self.waits.load(Ordering::Relaxed)
    }

    /// Evicts the first cluster of a queue, or moves it to main if it was used. False if the queue
    /// is empty.
    fn drop_from(&self, queues: &mut Queues, from: Queue) -> bool {
        let Some(held) = queues.first(from) else {
            return false;
        };
        let used = held.used.load(Ordering::Relaxed);
        if used > 0 {
            held.used.store(used - 1, Ordering::Relaxed);
            queues.move_to(&held, Queue::Main);
            return true;
        }
        queues.remove(&held);
        if from == Queue::Probation {
            self.ghosts.put(self.hasher.hash_one(held.key));
        }
        let mut table = lock(&self.shard(&held.key).table);
        if let Some(Slot::CachedCluster(present)) = table.slots.get(&held.key)
            && Arc::ptr_eq(present, &held)
        {
            table.slots.remove(&held.key);
        }
        self.dropped.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// Records a partial decode of a cluster. True if an earlier one is on record; the record is
    /// then removed.
    pub(crate) fn touched_again(&self, key: &Key) -> bool {
        let hash = self.hasher.hash_one(key);
        let again = self.touched.take(hash);
        if !again {
            self.touched.put(hash);
        }
        again
    }

    /// True if caching clusters for random readers pays: if a cached cluster is used again `hits`
    /// times on average.
    pub(crate) fn pays(&self, hits: f32) -> bool {
        // Before the first eviction, most of the uses are still to come.
        let room = self.dropped() == 0;
        self.reuse.pays(if room { hits / 1.5 } else { hits })
    }

    /// True if clusters that were cached for random readers were used again `hits` times on
    /// average.
    pub(crate) fn paid(&self, hits: f32) -> bool {
        self.reuse.paid(hits)
    }

    /// True if the next candidate for a push is pushed: all but one in `trial(n)`, where `n` counts
    /// the candidates from 0. The excepted clusters are cached instead, and their uses decide
    /// whether caching pays.
    pub(crate) fn is_pushed(&self, trial: impl Fn(usize) -> usize) -> bool {
        let n = self.push_candidates.fetch_add(1, Ordering::Relaxed);
        !n.is_multiple_of(trial(n))
    }

    /// Counts a cluster that was cached for a random reader (`found` false), or a hit by one.
    pub(crate) fn count(&self, found: bool) {
        self.reuse.count(found);
    }

    fn shard(&self, key: &Key) -> &Shard {
        // Fits: a remainder.
        &self.shards[(self.hasher.hash_one(key) >> 20) as usize % SHARDS]
    }
}

/// Fingerprints of recently seen keys, in a direct-mapped table. A newer key overwrites an older
/// one in the same slot.
struct Fingerprints(Vec<AtomicU32>);

impl Fingerprints {
    fn new() -> Self {
        Self((0..FINGERPRINTS).map(|_| AtomicU32::new(0)).collect())
    }

    fn place(&self, hash: u64) -> (&AtomicU32, u32) {
        // Fits: a remainder, and the high half.
        (
            &self.0[hash as usize % FINGERPRINTS],
            (hash >> 32) as u32 | 1,
        )
    }

    fn put(&self, hash: u64) {
        let (place, print) = self.place(hash);
        place.store(print, Ordering::Relaxed);
    }

    /// Removes a key. True if it was present.
    fn take(&self, hash: u64) -> bool {
        let (place, print) = self.place(hash);
        let present = place.load(Ordering::Relaxed) == print;
        if present {
            place.store(0, Ordering::Relaxed);
        }
        present
    }
}

/// Statistics of clusters that were cached for random readers.
#[derive(Default)]
struct ReuseStatistics {
    held: AtomicU32,
    found: AtomicU32,
    /// Number of refused decisions, to select the trials.
    refused: AtomicU32,
}

impl ReuseStatistics {
    /// Number of cached clusters after which both counters are halved.
    const WINDOW: u32 = 256;

    /// Number of clusters that are cached before the counters decide.
    const FIRST: u32 = 8;

    /// Interval of trials: every `TRIAL`th refused cluster is cached nevertheless, to detect a change.
    const TRIAL: u32 = 64;

    fn count(&self, found: bool) {
        if found {
            self.found.fetch_add(1, Ordering::Relaxed);
        } else if self.held.fetch_add(1, Ordering::Relaxed) >= Self::WINDOW {
            for n in [&self.held, &self.found] {
                n.store(n.load(Ordering::Relaxed) / 2, Ordering::Relaxed);
            }
        }
    }

    fn paid(&self, hits: f32) -> bool {
        let held = self.held.load(Ordering::Relaxed);
        let found = self.found.load(Ordering::Relaxed);
        held >= Self::FIRST && found as f32 >= held as f32 * hits
    }

    fn pays(&self, hits: f32) -> bool {
        self.held.load(Ordering::Relaxed) < Self::FIRST
            || self.paid(hits)
            || self
                .refused
                .fetch_add(1, Ordering::Relaxed)
                .is_multiple_of(Self::TRIAL)
    }
}

/// Locks a mutex and ignores poisoning: a panic leaves tables and queues consistent.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Exclusive right to decode a cluster. Dropping it without publishing wakes the waiting threads,
/// and one of them decodes.
pub(crate) struct Flight<'a> {
    cache: &'a ClusterCache,
    key: Key,
}

impl Flight<'_> {
    /// True if a thread waits for a cluster of the same shard.
    pub(crate) fn is_awaited(&self) -> bool {
        lock(&self.cache.shard(&self.key).table).waiting > 0
    }

    /// Publishes the first `len` bytes of `slab` for all threads. With `pinned`, they are never
    /// evicted.
    pub(crate) fn publish(self, slab: PoolBuffer, len: usize, pinned: bool) -> Arc<CachedCluster> {
        let held = Arc::new(CachedCluster {
            key: self.key,
            slab,
            len,
            pinned,
            returned: AtomicUsize::new(0),
            next: AtomicUsize::new(UNTOUCHED),
            used: AtomicU8::new(0),
            node: AtomicU32::new(NO_NODE),
        });
        let again = self.cache.ghosts.take(self.cache.hasher.hash_one(self.key));
        let mut queues = lock(&self.cache.queues);
        if pinned {
            let pinned = &self.cache.pinned;
            pinned.fetch_add(held.slab.len(), Ordering::Relaxed);
        } else {
            queues.push(&held, if again { Queue::Main } else { Queue::Probation });
        }
        // The lock of the queues is held until the cluster is in both structures, so that an
        // eviction finds it in the table.
        let shard = self.cache.shard(&self.key);
        let mut table = lock(&shard.table);
        table
            .slots
            .insert(self.key, Slot::CachedCluster(held.clone()));
        if table.waiting > 0 {
            shard.changed.notify_all();
        }
        drop(table);
        drop(queues);
        std::mem::forget(self);
        held
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        let shard = self.cache.shard(&self.key);
        let mut table = lock(&shard.table);
        if let Some(Slot::Busy) = table.slots.get(&self.key) {
            table.slots.remove(&self.key);
        }
        if table.waiting > 0 {
            shard.changed.notify_all();
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Queue {
    Probation,
    Main,
    Returned,
}

/// Three doubly linked lists over one arena of nodes: insertion and removal take constant time.
#[derive(Default)]
struct Queues {
    nodes: Vec<Node>,
    /// Nodes that are in no list.
    free: Vec<u32>,
    lists: [List; 3],
}

struct Node {
    held: Option<Arc<CachedCluster>>,
    queue: Queue,
    before: u32,
    next: u32,
}

struct List {
    first: u32,
    last: u32,
    bytes: usize,
}

impl Default for List {
    fn default() -> Self {
        Self {
            first: NO_NODE,
            last: NO_NODE,
            bytes: 0,
        }
    }
}

impl Queues {
    fn first(&self, queue: Queue) -> Option<Arc<CachedCluster>> {
        let n = self.lists[queue as usize].first;
        self.nodes
            .get(n as usize)
            .and_then(|node| node.held.clone())
    }

    fn push(&mut self, held: &Arc<CachedCluster>, queue: Queue) {
        let n = self.free.pop().unwrap_or_else(|| {
            self.nodes.push(Node {
                held: None,
                queue,
                before: NO_NODE,
                next: NO_NODE,
            });
            // Fits: each node stands for at least 4 KiB of memory.
            self.nodes.len() as u32 - 1
        });
        held.node.store(n, Ordering::Relaxed);
        let list = &mut self.lists[queue as usize];
        list.bytes += held.slab.len();
        let last = std::mem::replace(&mut list.last, n);
        if last == NO_NODE {
            list.first = n;
        } else {
            self.nodes[last as usize].next = n;
        }
        self.nodes[n as usize] = Node {
            held: Some(held.clone()),
            queue,
            before: last,
            next: NO_NODE,
        };
    }

    /// Removes a cluster from its list. `None` if it is in no list.
    fn remove(&mut self, held: &CachedCluster) -> Option<Arc<CachedCluster>> {
        let n = held.node.swap(NO_NODE, Ordering::Relaxed);
        let node = self.nodes.get_mut(n as usize)?;
        let (own, queue, before, next) = (node.held.take(), node.queue, node.before, node.next);
        let list = &mut self.lists[queue as usize];
        list.bytes -= held.slab.len();
        match before {
            NO_NODE => list.first = next,
            before => self.nodes[before as usize].next = next,
        }
        match next {
            NO_NODE => self.lists[queue as usize].last = before,
            next => self.nodes[next as usize].before = before,
        }
        self.free.push(n);
        own
    }

    /// Moves a cluster to the end of a list. False if it is in no list.
    fn move_to(&mut self, held: &CachedCluster, queue: Queue) -> bool {
        let own = self.remove(held);
        if let Some(own) = &own {
            self.push(own, queue);
        }
        own.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    const COST: usize = 4096;

    fn cache(clusters: usize) -> ClusterCache {
        let limit = clusters * COST;
        ClusterCache::new(BufferPool::new(limit), limit)
    }

    fn key(n: u64) -> Key {
        (n * 4096, 4096, ClusterCoding::Compressed(0))
    }

    /// Requests bytes of a cluster. True if they were cached.
    fn ask(cache: &ClusterCache, n: u64, from: usize, len: usize) -> bool {
        match cache.begin(key(n), |_| true, true) {
            Lookup::CachedCluster(held) => {
                assert_eq!(held.bytes()[0], n as u8, "content of the requested cluster");
                cache.touch(&held, from, len);
                true
            }
            Lookup::Lead(flight) => {
                let mut slab = cache.slab(COST).unwrap();
                slab[0] = n as u8;
                let held = flight.publish(slab, COST, false);
                cache.touch(&held, from, len);
                false
            }
            Lookup::Busy => unreachable!("waits"),
        }
    }

    fn check(cache: &ClusterCache) {
        let queues = lock(&cache.queues);
        let mut all = 0;
        for list in &queues.lists {
            let (mut n, mut bytes, mut before) = (list.first, 0, NO_NODE);
            while n != NO_NODE {
                let node = &queues.nodes[n as usize];
                let held = node.held.as_ref().unwrap();
                assert_eq!(held.node.load(Ordering::Relaxed), n);
                assert_eq!(node.before, before);
                bytes += held.slab.len();
                all += 1;
                (before, n) = (n, node.next);
            }
            assert_eq!((list.last, list.bytes), (before, bytes));
        }
        let held: usize = cache
            .shards
            .iter()
            .map(|s| lock(&s.table).slots.len())
            .sum();
        assert_eq!(held, all, "every cluster is in the table and in a queue");
        assert!(cache.slabs.used() <= cache.limit);
    }

    #[test]
    fn clusters_that_are_used_again_survive_a_scan() {
        let cache = cache(100);
        // Some clusters are used several times, in parts and in turn.
        for round in 0..4 {
            for n in 0..40 {
                ask(&cache, n, round * 100, 100);
            }
        }
        check(&cache);
        // A reader scans many times the budget, each cluster in two parts.
        for n in 1000..3000 {
            ask(&cache, n, 0, COST / 2);
            assert!(
                ask(&cache, n, COST / 2, COST / 2),
                "the second part is a hit"
            );
        }
        check(&cache);
        let kept = (0..40).filter(|n| ask(&cache, *n, 500, 100)).count();
        assert_eq!(kept, 40);
    }

    #[test]
    fn a_partial_scan_does_not_evict_reused_clusters() {
        let cache = cache(100);
        for round in 0..4 {
            for n in 0..40 {
                ask(&cache, n, round * 700, 100);
            }
        }
        for n in 1000..3000 {
            ask(&cache, n, 0, 100);
        }
        check(&cache);
        let kept = (0..40).filter(|n| ask(&cache, *n, 500, 100)).count();
        assert_eq!(kept, 40);
    }

    #[test]
    fn a_cluster_evicted_too_early_enters_main_the_next_time() {
        let cache = cache(10);
        for n in 0..20 {
            ask(&cache, n, 0, 1);
        }
        assert!(!ask(&cache, 0, 0, 1), "evicted");
        for n in 100..120 {
            ask(&cache, n, 0, 1);
        }
        assert!(ask(&cache, 0, 0, 1), "cached in main");
        check(&cache);
    }

    #[test]
    fn pinned_clusters_are_not_evicted() {
        let cache = cache(10);
        let Lookup::Lead(flight) = cache.begin(key(7), |_| true, true) else {
            panic!("the cache is empty");
        };
        let mut slab = cache.slab(COST).unwrap();
        slab[0] = 7;
        flight.publish(slab, COST, true);
        for n in 100..200 {
            ask(&cache, n, 0, 1);
        }
        cache.make_room(0, 0);
        assert!(ask(&cache, 7, 0, COST));
        assert!(
            ask(&cache, 7, 0, COST),
            "cached after every byte was returned"
        );
        assert_eq!(cache.slabs.used(), COST);
    }

    #[test]
    fn a_waiting_thread_leads_after_a_failure_or_panic() {
        let cache = cache(10);
        let (leaders, good) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let step =
                            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| match cache
                                .begin(key(1), |_| true, true)
                            {
                                Lookup::CachedCluster(_) => {
                                    good.fetch_add(1, Ordering::Relaxed);
                                }
                                Lookup::Lead(flight) => {
                                    match leaders.fetch_add(1, Ordering::Relaxed) {
                                        n if n < 20 && n % 2 == 0 => drop(flight),
                                        n if n < 20 => std::panic::resume_unwind(Box::new(())),
                                        _ => {
                                            flight.publish(cache.slab(COST).unwrap(), COST, false);
                                        }
                                    }
                                }
                                Lookup::Busy => unreachable!("waits"),
                            }));
                        drop(step);
                    }
                });
            }
        });
        assert_eq!(
            leaders.into_inner(),
            21,
            "20 failed leaders and the successful one"
        );
        assert_eq!(good.into_inner(), 8 * 50 - 21);
    }

    #[test]
    fn lookups_without_wait_report_busy_clusters() {
        let cache = cache(10);
        let flight = cache.begin(key(1), |_| true, false);
        assert!(matches!(cache.begin(key(1), |_| true, false), Lookup::Busy));
        drop(flight);
        assert!(matches!(
            cache.begin(key(1), |_| true, false),
            Lookup::Lead(_)
        ));
    }

    #[test]
    fn an_unsuitable_cluster_is_replaced() {
        let cache = cache(10);
        ask(&cache, 3, 0, 10);
        let Lookup::Lead(flight) = cache.begin(key(3), |bytes| bytes.len() > COST, true) else {
            panic!("the cached cluster is too short");
        };
        flight.publish(cache.slab(2 * COST).unwrap(), 2 * COST, false);
        check(&cache);
        assert!(matches!(
            cache.begin(key(3), |b| b.len() > COST, true),
            Lookup::CachedCluster(_)
        ));
    }
}
