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

/// Upper bounds of the size classes of reads: powers of two. The last class has none. Unit: bytes.
pub const READ_SIZES: [u64; 12] = [
    512,
    1 << 10,
    2 << 10,
    4 << 10,
    8 << 10,
    16 << 10,
    32 << 10,
    64 << 10,
    128 << 10,
    256 << 10,
    512 << 10,
    1 << 20,
];

/// Counters of one thread.
#[derive(Default)]
#[repr(align(128))]
pub struct ThreadCounters {
    ops: [Op; OPS.len()],
    /// Read requests by size class.
    read_sizes: [AtomicU64; READ_SIZES.len() + 1],
    requested_bytes: AtomicU64,
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
    /// Counts the size of a read request, whatever its outcome.
    pub fn count_read(&self, size: u32) {
        let size = u64::from(size);
        let class = READ_SIZES.partition_point(|max| *max < size);
        self.read_sizes[class].fetch_add(1, Relaxed);
        self.requested_bytes.fetch_add(size, Relaxed);
    }

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

/// Sizes of read requests over all threads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadSizes {
    /// Requests by size class, see [`READ_SIZES`].
    pub classes: [u64; READ_SIZES.len() + 1],
    /// Sum of the sizes. Unit: bytes.
    pub requested_bytes: u64,
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

    /// Returns the sizes of read requests.
    pub fn read_sizes(&self) -> ReadSizes {
        let mut out = ReadSizes::default();
        for slot in &self.slots {
            for (to, from) in out.classes.iter_mut().zip(&slot.read_sizes) {
                *to += from.load(Relaxed);
            }
            out.requested_bytes += slot.requested_bytes.load(Relaxed);
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
        let sizes = self.read_sizes();
        if sizes.requested_bytes > 0 {
            line("read", "requested_bytes", sizes.requested_bytes);
        }
        let classes = sizes.classes.iter().enumerate();
        for (i, n) in classes.filter(|(_, n)| **n > 0) {
            let class = match READ_SIZES.get(i) {
                Some(max) => format!("up_to_{max}_bytes"),
                None => "longer".to_owned(),
            };
            line("read", &class, *n);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn read_sizes_are_counted_by_power_of_two() {
        let counters = Counters::new(2);
        for size in [512, 4096, 4097, 8192, 1 << 20] {
            counters.thread(0).count_read(size);
        }
        counters.thread(1).count_read(4096);
        counters.thread(1).count_read((1 << 20) + 1);
        let sizes = counters.read_sizes();
        assert_eq!(sizes.classes, [1, 0, 0, 2, 2, 0, 0, 0, 0, 0, 0, 1, 1]);
        assert_eq!(sizes.requested_bytes, 2_118_146);
        let text = counters.text();
        let (_, sizes) = text.split_once('\n').unwrap();
        assert_eq!(
            sizes,
            "\
read.requested_bytes 2118146
read.up_to_512_bytes 1
read.up_to_4096_bytes 2
read.up_to_8192_bytes 2
read.up_to_1048576_bytes 1
read.longer 1
"
        );
    }
}
