//! Counters of a session: requests, errors, bytes and latency by operation.
//!
//! Each serving thread has counters of its own, so that counting shares no cache line.

use crate::protocol::op;
use rustix::io::Errno;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Operations that are counted by name. The last one stands for all others.
const OPS: [u32; 17] = [
    op::LOOKUP,
    op::GETATTR,
    op::READLINK,
    op::READ,
    op::READDIR,
    op::READDIRPLUS,
    op::GETXATTR,
    op::LISTXATTR,
    op::STATFS,
    op::LSEEK,
    op::FORGET,
    op::BATCH_FORGET,
    op::OPEN,
    op::OPENDIR,
    op::FLUSH,
    op::INIT,
    0,
];

/// Upper bounds of the latency classes. The last class has none. Unit: microseconds.
pub const LATENCY_US: [u64; 12] = [
    2, 5, 10, 20, 50, 100, 200, 500, 1000, 10_000, 100_000, 1_000_000,
];

/// Counters of one thread.
#[derive(Default)]
#[repr(align(128))]
pub struct ThreadCounters {
    ops: [Op; OPS.len()],
}

#[derive(Default)]
struct Op {
    requests: AtomicU64,
    errors: AtomicU64,
    returned_bytes: AtomicU64,
    nanoseconds: AtomicU64,
    classes: [AtomicU64; LATENCY_US.len() + 1],
}

impl ThreadCounters {
    /// Counts an answered request.
    ///
    /// `outcome` is the length of the reply in bytes without its header. None means that no reply was expected.
    pub fn count(&self, opcode: u32, outcome: Option<Result<usize, Errno>>, took: Duration) {
        let place = OPS.iter().position(|o| *o == opcode);
        let op = &self.ops[place.unwrap_or(OPS.len() - 1)];
        op.requests.fetch_add(1, Relaxed);
        match outcome {
            Some(Ok(len)) => op.returned_bytes.fetch_add(len as u64, Relaxed),
            Some(Err(_)) => op.errors.fetch_add(1, Relaxed),
            None => 0,
        };
        let us = took.as_micros();
        let class = LATENCY_US.iter().position(|end| us < u128::from(*end));
        op.classes[class.unwrap_or(LATENCY_US.len())].fetch_add(1, Relaxed);
        // Does not overflow in 584 years.
        op.nanoseconds.fetch_add(took.as_nanos() as u64, Relaxed);
    }
}

/// Totals of one operation over all threads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OperationTotals {
    /// Name of the operation.
    pub name: &'static str,
    /// Number of answered requests.
    pub requests: u64,
    /// Number of requests with an error, ENOSYS and ENODATA included.
    pub errors: u64,
    /// Bytes of replies without headers.
    pub returned_bytes: u64,
    /// Time from reading a request to its reply being ready. Unit: nanoseconds.
    pub nanoseconds: u64,
    /// Requests by latency class, see [`LATENCY_US`].
    pub classes: [u64; LATENCY_US.len() + 1],
}

/// Counters of all threads.
pub struct Counters {
    slots: Vec<ThreadCounters>,
    start: Instant,
}

impl Counters {
    /// Creates counters for this number of threads.
    pub fn new(threads: usize) -> Self {
        Self {
            slots: (0..threads.max(1))
                .map(|_| ThreadCounters::default())
                .collect(),
            start: Instant::now(),
        }
    }

    /// Returns the counters of one thread.
    pub fn thread(&self, number: usize) -> &ThreadCounters {
        &self.slots[number % self.slots.len()]
    }

    /// Returns the time since the mount. Unit: seconds.
    pub fn seconds(&self) -> u64 {
        self.start.elapsed().as_secs()
    }

    /// Returns the totals of all operations that occurred.
    pub fn sums(&self) -> Vec<OperationTotals> {
        let mut out = Vec::new();
        for (i, code) in OPS.iter().enumerate() {
            let mut sum = OperationTotals {
                name: op::name(*code),
                ..OperationTotals::default()
            };
            for op in self.slots.iter().map(|slot| &slot.ops[i]) {
                sum.requests += op.requests.load(Relaxed);
                sum.errors += op.errors.load(Relaxed);
                sum.returned_bytes += op.returned_bytes.load(Relaxed);
                sum.nanoseconds += op.nanoseconds.load(Relaxed);
                for (to, from) in sum.classes.iter_mut().zip(&op.classes) {
                    *to += from.load(Relaxed);
                }
            }
            if sum.requests > 0 {
                out.push(sum);
            }
        }
        out
    }

    /// Returns all counters, a name and a number per line.
    pub fn text(&self) -> String {
        let mut out = format!("uptime_seconds {}\n", self.seconds());
        let mut line = |op: &str, what: &str, n: u64| {
            let _ = writeln!(out, "{op}.{what} {n}");
        };
        for sum in self.sums() {
            line(sum.name, "requests", sum.requests);
            line(sum.name, "errors", sum.errors);
            line(sum.name, "returned_bytes", sum.returned_bytes);
            line(sum.name, "nanoseconds", sum.nanoseconds);
            for (i, n) in sum.classes.iter().enumerate().filter(|(_, n)| **n > 0) {
                let class = match LATENCY_US.get(i) {
                    Some(end) => format!("below_{end}_us"),
                    None => "slower".to_owned(),
                };
                line(sum.name, &class, *n);
            }
        }
        out
    }
}
