//! On which processor a thread serves.
//!
//! A request for a name takes a few microseconds; waking a thread on a processor that sleeps takes many more, there and back. As long as one process asks
//! one small thing after another it waits for every answer, so its processor is free: the thread that answers moves there, and nobody is woken elsewhere.
//! When somebody else asks too, or much is read or written and work can overlap, it may run everywhere again.

use crate::handler::Request;
use crate::protocol::op;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Requests of one process in a row before a thread follows it.
const STREAK: u32 = 32;
/// Requests after which it looks again where that process is.
const LOOK_AGAIN: u32 = 256;
/// Requests that carry more than this are work that can overlap. Unit: bytes.
const LARGE: usize = 32 << 10;

/// The place of one serving thread.
pub struct ClientAffinity {
    /// Where it may run at all; `None` if it is not to move.
    anywhere: Option<CpuSet>,
    /// Who asked last, and how often in a row.
    asker: u32,
    streak: u32,
    /// The processor it is bound to.
    bound: Option<usize>,
}

impl Default for ClientAffinity {
    /// Returns the state of a thread that may run on all CPUs.
    fn default() -> Self {
        let anywhere = sched_getaffinity(None).ok().filter(|set| set.count() > 1);
        Self {
            anywhere,
            asker: 0,
            streak: 0,
            bound: None,
        }
    }
}

impl ClientAffinity {
    /// Moves the calling thread, if the request says that it is worth it.
    pub fn choose(&mut self, request: &Request<'_>) {
        let Some(anywhere) = &self.anywhere else {
            return;
        };
        // Both kinds say how much after a handle and an offset.
        let len = match request.header.opcode {
            op::READ => request
                .body
                .get(16..20)
                .and_then(|b| b.try_into().ok())
                .map_or(0, u32::from_ne_bytes) as usize,
            _ => request.body.len(),
        };
        let asker = request.header.pid;
        if len > LARGE || asker != 0 && asker != self.asker {
            (self.asker, self.streak) = (asker, 0);
            if self.bound.take().is_some() {
                let _ = sched_setaffinity(None, anywhere);
            }
            return;
        }
        if asker == 0 {
            // The kernel's own, such as pages written back: they say nothing.
            return;
        }
        self.streak = self.streak.saturating_add(1);
        let look =
            self.streak == STREAK || self.streak > STREAK && self.streak.is_multiple_of(LOOK_AGAIN);
        if look
            && let Some(processor) = processor_of(asker)
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

/// The processor on which a thread ran last.
fn processor_of(thread: u32) -> Option<usize> {
    let stat = std::fs::read_to_string(format!("/proc/{thread}/stat")).ok()?;
    // The name in parentheses may hold anything; the 39th field is the 37th after it.
    let (_, fields) = stat.rsplit_once(')')?;
    let number = fields.split_whitespace().nth(36)?.parse().ok()?;
    (number < CpuSet::MAX_CPU).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::InHeader;

    fn ask(affinity: &mut ClientAffinity, pid: u32, len: usize) {
        let body = vec![0; len];
        let header = InHeader {
            pid,
            ..InHeader::default()
        };
        affinity.choose(&Request {
            header,
            body: &body,
        });
    }

    #[test]
    fn a_thread_follows_who_asks_alone_and_lets_go_of_who_does_not() {
        let before = sched_getaffinity(None).unwrap();
        let mut affinity = ClientAffinity::default();
        if affinity.anywhere.is_none() {
            return;
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
