//! Worker threads that read and encode, and the order of their results.
//!
//! Invariants:
//!
//! * A result depends on its job and on the earlier jobs whose clusters it shares: every worker produces the same
//!   bytes.
//! * Jobs are taken in the order of submission, urgent jobs first. Urgent jobs share nothing.
//! * The bytes in flight stay below the budget, except that one job is always admitted.

use super::block_buffer::BlockBuffer;
use super::grain::Grain;
use super::shared_clusters::ClusterBoard;
use super::worker::{Job, JobOut, Worker};
use crate::{Error, Result};
use hashbrown::HashMap;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use tuff_format::BlockBits;

/// Least budget in bytes of jobs in flight.
pub(crate) const IN_FLIGHT_MIN: u64 = 16 << 20;

/// Number of queued jobs whose contents are read ahead from a disk.
const READAHEAD_JOBS: usize = 16;

/// Pool of encoding threads.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    budget: u64,
}

struct Shared {
    state: Mutex<State>,
    work: Condvar,
    done: Condvar,
    /// Clusters that later parts may use.
    board: Arc<ClusterBoard>,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Job>,
    urgent: VecDeque<Job>,
    done: HashMap<u64, (u64, Result<JobOut>)>,
    /// Job that the collecting thread waits for.
    awaited: Option<u64>,
    in_flight: u64,
    closed: bool,
    /// Output buffers for reuse.
    buffers: Vec<BlockBuffer>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // A worker that panicked has left an error in `done`. The state itself is never changed in part.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pool {
    /// Starts up to `threads` workers, at least one, with `budget` bytes of jobs in flight. `sums` enables checksums of
    /// contents.
    pub(crate) fn start(
        threads: usize,
        budget: u64,
        counted: (BlockBits, Grain),
        sums: bool,
    ) -> Result<Self> {
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            work: Condvar::new(),
            done: Condvar::new(),
            board: Arc::default(),
        });
        let mut pool = Self {
            shared,
            threads: Vec::new(),
            budget,
        };
        for n in 0..threads.max(1) {
            let shared = Arc::clone(&pool.shared);
            let thread = std::thread::Builder::new()
                .name(format!("pack-{n}"))
                .spawn(move || run(&shared, counted, sums));
            match thread {
                Ok(thread) => pool.threads.push(thread),
                Err(e) if n == 0 => return Err(Error::io("build", "cannot start a thread", e)),
                Err(_) => break,
            }
        }
        Ok(pool)
    }

    /// Returns the clusters that later parts may use.
    pub(crate) fn board(&self) -> &ClusterBoard {
        &self.shared.board
    }

    /// Sets the budget in bytes of jobs in flight.
    pub(crate) fn set_budget(&mut self, budget: u64) {
        self.budget = budget;
    }

    /// Returns true if a job of `cost` bytes may be submitted while `used` bytes of the budget are used otherwise.
    pub(crate) fn has_room(&self, cost: u64, used: u64) -> bool {
        let budget = self.budget.saturating_sub(used).max(IN_FLIGHT_MIN);
        let state = self.shared.lock();
        state.in_flight == 0 || state.in_flight + cost <= budget
    }

    /// Submits a job. An urgent job goes before all queued ones.
    pub(crate) fn submit(&self, job: Job, urgent: bool) {
        let mut state = self.shared.lock();
        state.in_flight += job.cost;
        if urgent {
            state.urgent.push_back(job)
        } else {
            state.queue.push_back(job)
        }
        drop(state);
        self.shared.work.notify_one();
    }

    /// Takes the result of job `id`, if it is ready.
    pub(crate) fn try_take(&self, id: u64) -> Option<Result<JobOut>> {
        let mut state = self.shared.lock();
        let (cost, out) = state.done.remove(&id)?;
        state.in_flight -= cost;
        Some(out)
    }

    /// Waits for the result of job `id`, which was submitted.
    pub(crate) fn take(&self, id: u64) -> Result<JobOut> {
        let mut state = self.wait_for(id);
        // Present: it was waited for, and only one thread takes results.
        let (cost, out) = state.done.remove(&id).expect("the job is done");
        state.in_flight -= cost;
        out
    }

    /// Waits until job `id` is done. It was submitted and not taken.
    pub(crate) fn wait(&self, id: u64) {
        drop(self.wait_for(id));
    }

    fn wait_for(&self, id: u64) -> MutexGuard<'_, State> {
        let mut state = self.shared.lock();
        while !state.done.contains_key(&id) {
            state.awaited = Some(id);
            state = self
                .shared
                .done
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        state.awaited = None;
        state
    }

    /// Returns the number of output buffers that are kept.
    pub(crate) fn buffers(&self) -> usize {
        2 * self.threads.len() + 2
    }

    /// Returns an output buffer to the pool.
    pub(crate) fn recycle(&self, mut buffer: BlockBuffer) {
        buffer.truncate(0);
        let mut state = self.shared.lock();
        if state.buffers.len() < self.buffers() {
            state.buffers.push(buffer);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.closed = true;
        state.queue.clear();
        state.urgent.clear();
        drop(state);
        self.shared.work.notify_all();
        for thread in self.threads.drain(..) {
            // A panic was converted to an error by the worker.
            let _ = thread.join();
        }
    }
}

fn run(shared: &Shared, counted: (BlockBits, Grain), sums: bool) {
    let mut worker = Worker::new(counted, Arc::clone(&shared.board), sums);
    let mut state = shared.lock();
    loop {
        let job = state.urgent.pop_front().or_else(|| state.queue.pop_front());
        let Some(mut job) = job else {
            if state.closed {
                return;
            }
            state = shared
                .work
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
            continue;
        };
        let buffer = state.buffers.pop().unwrap_or_default();
        let ranges: Vec<_> = if worker.is_cold() {
            let next = state.queue.iter_mut().take(READAHEAD_JOBS);
            job.take_ranges()
                .chain(next.flat_map(Job::take_ranges))
                .collect()
        } else {
            Vec::new()
        };
        drop(state);
        worker.advise(&ranges);
        let (id, cost) = (job.id, job.cost);
        let out = catch_unwind(AssertUnwindSafe(|| worker.run(job, buffer))).unwrap_or_else(|_| {
            worker = Worker::new(counted, Arc::clone(&shared.board), sums);
            Err(Error::limit(
                "build",
                "a worker failed for a reason of its own; this is a bug",
            ))
        });
        state = shared.lock();
        // A finished job costs the memory of its result.
        let kept = out.as_ref().map_or(0, |o| o.footprint());
        state.in_flight = state.in_flight - cost + kept;
        state.done.insert(id, (kept, out));
        if state.awaited == Some(id) {
            shared.done.notify_one();
        }
    }
}
