//! Decoded clusters, each decoded by one thread at a time and kept as long as somebody may want more of it.
//!
//! ```text
//!  begin(key) ─► Held      here it is
//!             ─► Busy      another thread decodes it: do something else, or wait
//!             ─► Lead      decode it, then publish or give up; whoever waits wakes up either way
//!
//!  published ─► probation ─► main          kept for what was used again       (the order of S3-FIFO)
//!                   │    └─► dropped       its key is remembered: next time it goes to main
//!                   └─► behind             every byte was returned once: who is above has them; dropped first
//!  pinned: in no queue
//! ```
//!
//! Invariants:
//!
//! * Nothing is decoded under a lock. The lock of the queues is taken before that of a shard, never after.
//! * A held cluster is in exactly one queue, or pinned, as long as it is in the table.
//! * A leader that fails, or panics, leaves no trace: the next who asks leads.

use super::buffer_pool::{BufferPool, PoolBuffer};
use crate::read::ClusterCoding;
use hashbrown::{DefaultHashBuilder, HashMap};
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// A cluster's name: position in the unified address space, length, coding.
pub(crate) type Key = (u64, u32, ClusterCoding);

/// Locks of the table.
const SHARDS: usize = 16;

/// Keys that are remembered after they were dropped, or decoded in part.
const PRINTS: usize = 1 << 12;

/// Most that clusters behind a reader may take: what fits the processor's cache. Unit: bytes.
const BEHIND: usize = 2 << 20;

/// How often a use is counted.
const USED_MAX: u8 = 3;

/// A decoded cluster.
pub(crate) struct CachedCluster {
    key: Key,
    slab: PoolBuffer,
    /// Decoded bytes, from the start.
    len: usize,
    pinned: bool,
    /// How many of them were returned, again and again counted.
    returned: AtomicUsize,
    /// Where the last returned run ended.
    next: AtomicUsize,
    /// Uses that did not just go on where the last one ended.
    used: AtomicU8,
    /// Its place in the queues, `NOWHERE` without one. Written under their lock.
    node: AtomicU32,
}

const NOWHERE: u32 = u32::MAX;

/// Nothing of it was returned yet.
const UNTOUCHED: usize = usize::MAX;

impl CachedCluster {
    /// The decoded bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.slab[..self.len]
    }

    /// Whether it is kept for good.
    pub(crate) fn is_pinned(&self) -> bool {
        self.pinned
    }

    /// One of these bytes that is in no cache.
    #[cfg(test)]
    pub(crate) fn of(bytes: &[u8]) -> Arc<Self> {
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
    /// A thread decodes it.
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
    /// Threads that wait for something in this shard.
    waiting: usize,
}

/// What became of a request for a cluster.
pub(crate) enum Lookup<'a> {
    CachedCluster(Arc<CachedCluster>),
    Busy,
    Lead(Flight<'a>),
}

/// Decoded clusters by key.
pub(crate) struct ClusterCache {
    shards: [Shard; SHARDS],
    hasher: DefaultHashBuilder,
    queues: Mutex<Queues>,
    /// Keys that were dropped from probation.
    ghosts: Prints,
    /// Keys that were decoded in part only.
    touched: Prints,
    worth: Worth,
    /// Clusters that were to be handed on.
    handed: AtomicUsize,
    slabs: Arc<BufferPool>,
    /// Most that is held in slabs. Unit: bytes.
    limit: usize,
    dropped: AtomicUsize,
    pinned: AtomicUsize,
    waits: AtomicUsize,
}

impl ClusterCache {
    /// Evicts what it holds to keep what `slabs` has in use within `limit` bytes.
    pub(crate) fn new(slabs: Arc<BufferPool>, limit: usize) -> Self {
        Self {
            shards: std::array::from_fn(|_| Shard::default()),
            hasher: DefaultHashBuilder::default(),
            queues: Mutex::default(),
            ghosts: Prints::new(),
            touched: Prints::new(),
            worth: Worth::default(),
            handed: AtomicUsize::new(0),
            slabs,
            limit,
            dropped: AtomicUsize::new(0),
            pinned: AtomicUsize::new(0),
            waits: AtomicUsize::new(0),
        }
    }

    /// Takes part in what is to be done about a cluster. `suits` says whether one that is held will do; another one is
    /// decoded anew. With `wait`, never returns `Busy`.
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

    /// Counts that bytes `[from, from + n)` of a held cluster were returned.
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
            // All of it is in the hands of who asked.
            held.used.store(0, Ordering::Relaxed);
            let mut queues = lock(&self.queues);
            if queues.move_to(held, Queue::Behind) {
                let bound = BEHIND.min(self.limit / 8);
                while queues.lists[Queue::Behind as usize].bytes > bound {
                    self.drop_from(&mut queues, Queue::Behind);
                }
            }
        }
    }

    /// A slab for `len` bytes, for which others make room. `None` if it is so long that it would not fit beside what is
    /// in use.
    pub(crate) fn slab(&self, len: usize) -> Option<PoolBuffer> {
        let cost = BufferPool::cost(len);
        self.make_room(cost, self.limit);
        let short = cost <= self.limit / 8;
        (short || self.slabs.used() + cost <= self.limit).then(|| self.slabs.take(len))
    }

    /// A slab for the bytes of a cluster, at most a megabyte, for which others make room.
    pub(crate) fn slab_for_input(&self, len: usize) -> PoolBuffer {
        self.make_room(BufferPool::cost(len), self.limit);
        self.slabs.take(len)
    }

    /// Whether `len` bytes may be held at all.
    pub(crate) fn fits(&self, len: usize) -> bool {
        BufferPool::cost(len) <= self.limit / 8 * 7
    }

    /// Drops what is held until slabs for `more` bytes fit into `limit`, or nothing is left to drop.
    pub(crate) fn make_room(&self, more: usize, limit: usize) {
        if self.slabs.used() + more <= limit {
            return;
        }
        let mut queues = lock(&self.queues);
        // Main takes what probation leaves; a tenth is probation's own.
        while self.slabs.used() + more > limit {
            let bytes = |queue: Queue| queues.lists[queue as usize].bytes;
            let from = if bytes(Queue::Behind) > 0 {
                Queue::Behind
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

    /// Clusters that were dropped to make room.
    pub(crate) fn dropped(&self) -> usize {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Memory of pinned clusters. Unit: bytes.
    pub(crate) fn pinned(&self) -> usize {
        self.pinned.load(Ordering::Relaxed)
    }

    /// What may be held in all. Unit: bytes.
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// Times that a thread waited for another one.
    pub(crate) fn waits(&self) -> usize {
        self.waits.load(Ordering::Relaxed)
    }

    /// Drops, or moves on, the first of a queue. False if it is empty.
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
        if let Some(Slot::CachedCluster(there)) = table.slots.get(&held.key)
            && Arc::ptr_eq(there, &held)
        {
            table.slots.remove(&held.key);
        }
        self.dropped.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// Notes that a cluster is asked for in part. True if it was before, lately.
    pub(crate) fn touched_again(&self, key: &Key) -> bool {
        let hash = self.hasher.hash_one(key);
        let again = self.touched.take(hash);
        if !again {
            self.touched.put(hash);
        }
        again
    }

    /// Whether holding clusters for readers who jump about pays: after `hits` uses of each, on average.
    pub(crate) fn pays(&self, hits: f32) -> bool {
        // As long as nothing had to go for it, most of the uses are still to come.
        let room = self.dropped() == 0;
        self.worth.pays(if room { hits / 1.5 } else { hits })
    }

    /// Whether what was held for readers who jump about was used so often, on average.
    pub(crate) fn paid(&self, hits: f32) -> bool {
        self.worth.paid(hits)
    }

    /// Whether the next cluster is handed on, if that is wanted: all but one in `trial(n)`, the n-th counted from 0. The uses
    /// of that one are seen here and say for all whether this pays.
    pub(crate) fn hands_on(&self, trial: impl Fn(usize) -> usize) -> bool {
        let n = self.handed.fetch_add(1, Ordering::Relaxed);
        !n.is_multiple_of(trial(n))
    }

    /// Counts a cluster that was held for a reader who jumps about, or one that such a reader found.
    pub(crate) fn count(&self, found: bool) {
        self.worth.count(found);
    }

    fn shard(&self, key: &Key) -> &Shard {
        // Fits: a remainder.
        &self.shards[(self.hasher.hash_one(key) >> 20) as usize % SHARDS]
    }
}

/// Keys that were seen lately, most of them: fingerprints, each in the one place where it may be.
struct Prints(Vec<AtomicU32>);

impl Prints {
    fn new() -> Self {
        Self((0..PRINTS).map(|_| AtomicU32::new(0)).collect())
    }

    fn place(&self, hash: u64) -> (&AtomicU32, u32) {
        // Fits: a remainder, and the high half.
        (&self.0[hash as usize % PRINTS], (hash >> 32) as u32 | 1)
    }

    fn put(&self, hash: u64) {
        let (place, print) = self.place(hash);
        place.store(print, Ordering::Relaxed);
    }

    /// Whether a key is there. It is not, afterwards.
    fn take(&self, hash: u64) -> bool {
        let (place, print) = self.place(hash);
        let there = place.load(Ordering::Relaxed) == print;
        if there {
            place.store(0, Ordering::Relaxed);
        }
        there
    }
}

/// What became of clusters that were held for readers who jump about.
#[derive(Default)]
struct Worth {
    held: AtomicU32,
    found: AtomicU32,
    /// Times that it was asked and did not pay.
    refused: AtomicU32,
}

impl Worth {
    /// After so many the past counts half.
    const WINDOW: u32 = 256;

    /// So many are held before anybody judges.
    const FIRST: u32 = 8;

    /// One in so many is held although it does not pay, to see whether that changed.
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

/// A panic elsewhere leaves tables and queues whole: no step in between breaks them.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The right to decode a cluster, and the duty to say when that is done.
pub(crate) struct Flight<'a> {
    cache: &'a ClusterCache,
    key: Key,
}

impl Flight<'_> {
    /// Whether a thread waits, perhaps for this cluster.
    pub(crate) fn is_awaited(&self) -> bool {
        lock(&self.cache.shard(&self.key).table).waiting > 0
    }

    /// Lets everybody have the first `len` bytes of `slab`. `pinned`: for good.
    pub(crate) fn publish(self, slab: PoolBuffer, len: usize, pinned: bool) -> Arc<CachedCluster> {
        let held = Arc::new(CachedCluster {
            key: self.key,
            slab,
            len,
            pinned,
            returned: AtomicUsize::new(0),
            next: AtomicUsize::new(UNTOUCHED),
            used: AtomicU8::new(0),
            node: AtomicU32::new(NOWHERE),
        });
        let again = self.cache.ghosts.take(self.cache.hasher.hash_one(self.key));
        let mut queues = lock(&self.cache.queues);
        if pinned {
            let pinned = &self.cache.pinned;
            pinned.fetch_add(held.slab.len(), Ordering::Relaxed);
        } else {
            queues.push(&held, if again { Queue::Main } else { Queue::Probation });
        }
        // The lock of the queues is held until the cluster is in both: whoever drops it finds it.
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
    Behind,
}

/// Three lists over one arena of nodes: joining and leaving take a few steps each.
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
    behind: u32,
}

struct List {
    first: u32,
    last: u32,
    bytes: usize,
}

impl Default for List {
    fn default() -> Self {
        Self {
            first: NOWHERE,
            last: NOWHERE,
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
                before: NOWHERE,
                behind: NOWHERE,
            });
            // Fits: each stands for 4 KiB of memory.
            self.nodes.len() as u32 - 1
        });
        held.node.store(n, Ordering::Relaxed);
        let list = &mut self.lists[queue as usize];
        list.bytes += held.slab.len();
        let last = std::mem::replace(&mut list.last, n);
        if last == NOWHERE {
            list.first = n;
        } else {
            self.nodes[last as usize].behind = n;
        }
        self.nodes[n as usize] = Node {
            held: Some(held.clone()),
            queue,
            before: last,
            behind: NOWHERE,
        };
    }

    /// Takes a cluster out of the list that it is in.
    fn remove(&mut self, held: &CachedCluster) -> Option<Arc<CachedCluster>> {
        let n = held.node.swap(NOWHERE, Ordering::Relaxed);
        let node = self.nodes.get_mut(n as usize)?;
        let (own, queue, before, behind) = (node.held.take(), node.queue, node.before, node.behind);
        let list = &mut self.lists[queue as usize];
        list.bytes -= held.slab.len();
        match before {
            NOWHERE => list.first = behind,
            before => self.nodes[before as usize].behind = behind,
        }
        match behind {
            NOWHERE => self.lists[queue as usize].last = before,
            behind => self.nodes[behind as usize].before = before,
        }
        self.free.push(n);
        own
    }

    /// Moves a cluster to the end of a list. False if it is in none.
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

    /// Asks for bytes of a cluster; true if they were held.
    fn ask(cache: &ClusterCache, n: u64, from: usize, len: usize) -> bool {
        match cache.begin(key(n), |_| true, true) {
            Lookup::CachedCluster(held) => {
                assert_eq!(held.bytes()[0], n as u8, "the right one");
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
            let (mut n, mut bytes, mut before) = (list.first, 0, NOWHERE);
            while n != NOWHERE {
                let node = &queues.nodes[n as usize];
                let held = node.held.as_ref().unwrap();
                assert_eq!(held.node.load(Ordering::Relaxed), n);
                assert_eq!(node.before, before);
                bytes += held.slab.len();
                all += 1;
                (before, n) = (n, node.behind);
            }
            assert_eq!((list.last, list.bytes), (before, bytes));
        }
        let held: usize = cache
            .shards
            .iter()
            .map(|s| lock(&s.table).slots.len())
            .sum();
        assert_eq!(held, all, "in the table and in a queue");
        assert!(cache.slabs.used() <= cache.limit);
    }

    #[test]
    fn clusters_that_are_used_again_survive_a_scan() {
        let cache = cache(100);
        // Some are used twice, in parts, by turns.
        for round in 0..4 {
            for n in 0..40 {
                ask(&cache, n, round * 100, 100);
            }
        }
        check(&cache);
        // A reader goes over many times the budget, each cluster in two parts.
        for n in 1000..3000 {
            ask(&cache, n, 0, COST / 2);
            assert!(
                ask(&cache, n, COST / 2, COST / 2),
                "its current cluster is held"
            );
        }
        check(&cache);
        let kept = (0..40).filter(|n| ask(&cache, *n, 500, 100)).count();
        assert_eq!(kept, 40);
    }

    #[test]
    fn a_scan_in_parts_that_are_not_all_returned_does_not_push_out_what_is_used() {
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
    fn what_is_dropped_too_early_is_kept_the_next_time() {
        let cache = cache(10);
        for n in 0..20 {
            ask(&cache, n, 0, 1);
        }
        assert!(!ask(&cache, 0, 0, 1), "dropped");
        for n in 100..120 {
            ask(&cache, n, 0, 1);
        }
        assert!(ask(&cache, 0, 0, 1), "in main now");
        check(&cache);
    }

    #[test]
    fn pinned_clusters_stay() {
        let cache = cache(10);
        let Lookup::Lead(flight) = cache.begin(key(7), |_| true, true) else {
            panic!("nothing is held yet");
        };
        let mut slab = cache.slab(COST).unwrap();
        slab[0] = 7;
        flight.publish(slab, COST, true);
        for n in 100..200 {
            ask(&cache, n, 0, 1);
        }
        cache.make_room(0, 0);
        assert!(ask(&cache, 7, 0, COST));
        assert!(ask(&cache, 7, 0, COST), "also when all of it was returned");
        assert_eq!(cache.slabs.used(), COST);
    }

    #[test]
    fn a_leader_that_fails_or_panics_hands_over() {
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
            "one after the other until one succeeds"
        );
        assert_eq!(good.into_inner(), 8 * 50 - 21);
    }

    #[test]
    fn a_busy_cluster_need_not_be_waited_for() {
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
    fn one_that_does_not_suit_is_replaced() {
        let cache = cache(10);
        ask(&cache, 3, 0, 10);
        let Lookup::Lead(flight) = cache.begin(key(3), |bytes| bytes.len() > COST, true) else {
            panic!("a longer one is wanted");
        };
        flight.publish(cache.slab(2 * COST).unwrap(), 2 * COST, false);
        check(&cache);
        assert!(matches!(
            cache.begin(key(3), |b| b.len() > COST, true),
            Lookup::CachedCluster(_)
        ));
    }
}
