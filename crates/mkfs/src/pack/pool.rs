//! Workers that read and encode, and the order in which their results come back.
//!
//! Invariants:
//!
//! * A result is a function of its job, and of the jobs before it whose clusters it shares: any worker, at any time, makes
//!   the same bytes.
//! * Jobs are taken in the order in which they were submitted, urgent ones before; those share nothing.
//! * The bytes in flight stay below the budget, except that one job is always let through.

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

/// Jobs in flight get at least so much. Unit: bytes.
pub(crate) const IN_FLIGHT_MIN: u64 = 16 << 20;

/// Of so many jobs that come next contents are asked for where they are on a disk.
const ASKED_AHEAD: usize = 16;

/// A pool of encoding threads.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    budget: u64,
}

struct Shared {
    state: Mutex<State>,
    work: Condvar,
    done: Condvar,
    /// What parts came to that others share.
    board: Arc<ClusterBoard>,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Job>,
    urgent: VecDeque<Job>,
    done: HashMap<u64, (u64, Result<JobOut>)>,
    /// The job whose result is waited for.
    awaited: Option<u64>,
    in_flight: u64,
    closed: bool,
    /// Output buffers to use again.
    buffers: Vec<BlockBuffer>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // A worker that panicked has left a message in `done`; the state itself is never half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pool {
    /// Starts up to `threads` workers, at least one, with `budget` bytes of jobs in flight. `sums`: of all contents sums are taken.
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

    /// What parts came to.
    pub(crate) fn board(&self) -> &ClusterBoard {
        &self.shared.board
    }

    /// From now on so many bytes of jobs may be in flight.
    pub(crate) fn set_budget(&mut self, budget: u64) {
        self.budget = budget;
    }

    /// True if a job of this cost may be submitted now, when so much of the budget went to something else. Unit: bytes.
    pub(crate) fn has_room(&self, cost: u64, gone: u64) -> bool {
        let budget = self.budget.saturating_sub(gone).max(IN_FLIGHT_MIN);
        let state = self.shared.lock();
        state.in_flight == 0 || state.in_flight + cost <= budget
    }

    /// Hands a job to the workers. An urgent one goes before all that wait.
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

    /// The result of job `id`, if it is there.
    pub(crate) fn try_take(&self, id: u64) -> Option<Result<JobOut>> {
        let mut state = self.shared.lock();
        let (cost, out) = state.done.remove(&id)?;
        state.in_flight -= cost;
        Some(out)
    }

    /// Waits for the result of job `id`, which was submitted.
    pub(crate) fn take(&self, id: u64) -> Result<JobOut> {
        let mut state = self.wait_for(id);
        // present: it was waited for, and one thread takes results
        let (cost, out) = state.done.remove(&id).expect("the job is done");
        state.in_flight -= cost;
        out
    }

    /// Waits until job `id`, which was submitted and not taken, is done.
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

    /// So many output buffers are kept.
    pub(crate) fn buffers(&self) -> usize {
        2 * self.threads.len() + 2
    }

    /// Gives an output buffer back.
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
            // A panic was turned into an error where it happened.
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
        let wanted: Vec<_> = if worker.is_cold() {
            let next = state.queue.iter_mut().take(ASKED_AHEAD);
            job.wanted().chain(next.flat_map(Job::wanted)).collect()
        } else {
            Vec::new()
        };
        drop(state);
        worker.ask(&wanted);
        let (id, cost) = (job.id, job.cost);
        let out = catch_unwind(AssertUnwindSafe(|| worker.run(job, buffer))).unwrap_or_else(|_| {
            worker = Worker::new(counted, Arc::clone(&shared.board), sums);
            Err(Error::limit(
                "build",
                "a worker failed for a reason of its own; this is a bug",
            ))
        });
        state = shared.lock();
        // From now on it costs what it holds.
        let held = out.as_ref().map_or(0, |o| o.footprint());
        state.in_flight = state.in_flight - cost + held;
        state.done.insert(id, (held, out));
        if state.awaited == Some(id) {
            shared.done.notify_one();
        }
    }
}
