//! CPU affinity: a serving thread follows a single client.
//!
//! A client that sends short requests waits for each reply, so its processor is free. The serving thread moves
//! there, and no wake-up on another processor is needed. The thread may run on all processors again when another
//! process sends requests, or when requests are large enough to overlap.
//!
//! Effect: "CPU placement, each mechanism alone" in `benchmarks/results/mounts.md`.

use crate::request::{Operation, Request};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Consecutive requests of one process after which the thread follows it.
const STREAK: u32 = 32;
/// Number of requests after which the client's processor is determined again.
const LOOK_AGAIN: u32 = 256;
/// Requests with more data than this can overlap with the client. Unit: bytes.
const LARGE: u32 = 32 << 10;

/// Affinity of one serving thread.
pub struct ClientAffinity {
    /// Allowed CPUs. None disables migration.
    anywhere: Option<CpuSet>,
    /// Process that sent the last request, and the number of its consecutive requests.
    client: u32,
    streak: u32,
    /// CPU that the thread is bound to.
    bound: Option<usize>,
}

impl Default for ClientAffinity {
    /// Returns the state of a thread that may run on all CPUs.
    fn default() -> Self {
        let anywhere = sched_getaffinity(None).ok().filter(|set| set.count() > 1);
        Self {
            anywhere,
            client: 0,
            streak: 0,
            bound: None,
        }
    }
}

impl ClientAffinity {
    /// Migrates the calling thread if the request calls for it.
    pub fn choose(&mut self, request: &Request<'_>) {
        let Some(anywhere) = &self.anywhere else {
            return;
        };
        let len = match request.operation {
            Ok(Operation::Read(read)) => read.size,
            _ => request.header.len,
        };
        let client = request.header.pid;
        if len > LARGE || client != 0 && client != self.client {
            (self.client, self.streak) = (client, 0);
            if self.bound.take().is_some() {
                let _ = sched_setaffinity(None, anywhere);
            }
            return;
        }
        if client == 0 {
            // Requests of the kernel, such as write-back, tell nothing about a client.
            return;
        }
        self.streak = self.streak.saturating_add(1);
        let is_due =
            self.streak == STREAK || self.streak > STREAK && self.streak.is_multiple_of(LOOK_AGAIN);
        if is_due
            && let Some(processor) = processor_of(client)
            && anywhere.is_set(processor)
            && self.bound != Some(processor)
        {
            let mut only = CpuSet::new();
            only.set(processor);
            if sched_setaffinity(None, &only).is_ok() {
                self.bound = Some(processor);
            }
        }
    }
}

/// Binds this thread to one processor. If that is not permitted, it may run on all.
pub(crate) fn stay_on(processor: usize) {
    let mut set = CpuSet::new();
    if processor < CpuSet::MAX_CPU {
        set.set(processor);
        let _ = rustix::thread::sched_setaffinity(None, &set);
    }
}

/// Returns the CPU on which a thread last ran.
fn processor_of(thread: u32) -> Option<usize> {
    let stat = std::fs::read_to_string(format!("/proc/{thread}/stat")).ok()?;
    // The name in parentheses may contain anything. Field 39 is the 37th after it.
    let (_, fields) = stat.rsplit_once(')')?;
    let number = fields.split_whitespace().nth(36)?.parse().ok()?;
    (number < CpuSet::MAX_CPU).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::InHeader;

    fn ask(affinity: &mut ClientAffinity, pid: u32, len: u32) {
        let header = InHeader {
            pid,
            len,
            ..InHeader::default()
        };
        affinity.choose(&Request {
            header,
            operation: Ok(Operation::Getattr(false)),
            slot: None,
        });
    }

    #[test]
    fn a_thread_follows_a_single_client_until_another_one_sends_requests() {
        let before = sched_getaffinity(None).unwrap();
        let mut affinity = ClientAffinity::default();
        if affinity.anywhere.is_none() {
            return tuff_testkit::skipped("the test may run on one processor only");
        }
        let me = std::process::id();
        assert!(processor_of(me).is_some_and(|n| before.is_set(n)));
        for _ in 0..=STREAK {
            assert_eq!(sched_getaffinity(None).unwrap().count(), before.count());
            ask(&mut affinity, me, 40);
            ask(&mut affinity, 0, 40);
        }
        assert!(affinity.bound.is_some());
        assert_eq!(sched_getaffinity(None).unwrap().count(), 1);
        ask(&mut affinity, me, LARGE + 1);
        assert_eq!(sched_getaffinity(None).unwrap().count(), before.count());
        for _ in 0..=STREAK {
            ask(&mut affinity, me, 40);
        }
        assert!(affinity.bound.is_some());
        ask(&mut affinity, 1, 40);
        assert_eq!(sched_getaffinity(None).unwrap().count(), before.count());
    }
}
