//! Adaptive polling: busy-poll for the next request before blocking.
//!
//! A client blocks until its reply, and a server until the next request: two context switches per request, which
//! take longer than most replies. While short requests arrive in a row
//! ([`CpuLatency`](crate::schedule::cpu_latency::CpuLatency) detects it), a thread polls for the next one. It does
//! so on another processor than the client's, which the client needs.
//!
//! ```text
//!  short requests in a row ─► away, polling ──┬─ a long request: home
//!                                             └─ contention: home, for an interval that doubles
//! ```
//!
//! Invariant: no thread polls for longer than [`POLL_TIME`] after a reply, nor stays where it has to wait for its
//! turn.
//!
//! Effect: `benchmarks/record/volumes/volumes-5.jsonl` and "busy polling" in `benchmarks/results/volumes.md`.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

/// Time that a thread polls. Most clients send their next request within it.
pub(crate) const POLL_TIME: Duration = Duration::from_micros(50);
/// Consecutive short requests before a thread migrates. Migration takes as long as some of them.
const ROW: u32 = 32;
/// Interval between checks for contention.
const CHECK: Duration = Duration::from_millis(1);
/// A thread returns home if it waited for more than one part in this many.
const WAITED: u32 = 8;
/// First and longest interval at home after contention. It doubles until a stay away without contention lasts as
/// long.
const REST: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(10)];

/// Migration of a thread between its own processor and another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Migration {
    Home,
    Away,
}

/// Polling state of one io_uring thread.
pub(crate) struct BusyPoll {
    /// Returns the total time that the thread waited for a processor. None if the kernel does not report it.
    waits: Box<dyn FnMut() -> Option<Duration>>,
    /// Consecutive short requests, up to the threshold.
    short: u32,
    /// Start of the stay away from home.
    away: Option<Instant>,
    /// Time of the last check, and the wait time reported then.
    checked: (Instant, Duration),
    /// End and length of the current interval at home.
    rests: (Instant, Duration),
}

impl BusyPoll {
    /// Creates the state of the calling thread. None if the kernel reports no wait times.
    pub(crate) fn new() -> Option<Self> {
        let file = File::open("/proc/thread-self/schedstat").ok()?;
        let waits = move || waited(&file);
        waits()?;
        Some(Self::by(Box::new(waits), Instant::now()))
    }

    fn by(waits: Box<dyn FnMut() -> Option<Duration>>, now: Instant) -> Self {
        Self {
            waits,
            short: 0,
            away: None,
            checked: (now, Duration::ZERO),
            rests: (now, Duration::ZERO),
        }
    }

    /// Returns true if the thread polls before it blocks.
    pub(crate) fn is_polling(&self) -> bool {
        self.away.is_some()
    }

    /// Notes an answered request. `in_row` states whether requests arrive in a row.
    pub(crate) fn note_answer(
        &mut self,
        long: bool,
        in_row: bool,
        now: Instant,
    ) -> Option<Migration> {
        if long || !in_row {
            self.short = 0;
            return self.away.take().map(|_| Migration::Home);
        }
        if self.short < ROW {
            self.short += 1;
            return None;
        }
        match self.away {
            Some(since) if now - self.checked.0 > CHECK => self.check(since, now),
            Some(_) => None,
            None if now < self.rests.0 => None,
            None => {
                self.checked = (now, (self.waits)()?);
                self.away = Some(now);
                Some(Migration::Away)
            }
        }
    }

    /// Returns home after contention, for longer than the last time if that was recent.
    fn check(&mut self, since: Instant, now: Instant) -> Option<Migration> {
        let (at, before) = self.checked;
        let waited = (self.waits)()?;
        self.checked = (now, waited);
        if waited.saturating_sub(before) * WAITED <= now - at {
            return None;
        }
        let rest = if now - since > self.rests.1 {
            REST[0]
        } else {
            (self.rests.1 * 2).clamp(REST[0], REST[1])
        };
        self.rests = (now + rest, rest);
        self.away = None;
        Some(Migration::Home)
    }
}

/// Parses the second number of a thread's `schedstat`. The first, its run time, is 0 where the kernel does not
/// count. Source: Linux, Documentation/scheduler/sched-stats.rst.
fn waited(schedstat: &File) -> Option<Duration> {
    let mut text = [0; 64];
    let n = schedstat.read_at(&mut text, 0).ok()?;
    let text = str::from_utf8(&text[..n]).ok()?;
    let mut numbers = text.split_whitespace().map(|n| n.parse::<u64>().ok());
    let (ran, waited) = (numbers.next()??, numbers.next()??);
    (ran > 0).then_some(Duration::from_nanos(waited))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::rc::Rc;

    const MS: Duration = Duration::from_millis(1);

    /// Returns a polling state, its clock and its wait time.
    fn busy_poll() -> (BusyPoll, Instant, Rc<Cell<Duration>>) {
        let waited = Rc::new(Cell::new(Duration::ZERO));
        let (now, waits) = (Instant::now(), waited.clone());
        let busy_poll = BusyPoll::by(Box::new(move || Some(waits.get())), now);
        (busy_poll, now, waited)
    }

    fn goes_away(busy_poll: &mut BusyPoll, now: Instant) -> bool {
        (0..4 * ROW).any(|_| busy_poll.note_answer(false, true, now) == Some(Migration::Away))
    }

    #[test]
    fn only_short_requests_in_a_row_make_a_thread_poll() {
        let (mut busy_poll, now, _) = busy_poll();
        for _ in 0..ROW {
            assert_eq!(busy_poll.note_answer(false, true, now), None);
        }
        assert!(!busy_poll.is_polling());
        assert_eq!(
            busy_poll.note_answer(false, true, now),
            Some(Migration::Away)
        );
        assert!(busy_poll.is_polling());
        assert_eq!(busy_poll.note_answer(false, true, now + 2 * MS), None);
        assert_eq!(
            busy_poll.note_answer(true, true, now + 2 * MS),
            Some(Migration::Home),
            "a long one"
        );
        assert!(goes_away(&mut busy_poll, now + 3 * MS));
        let end = busy_poll.note_answer(false, false, now + 4 * MS);
        assert_eq!(end, Some(Migration::Home), "the row is over");
        for _ in 0..10 * ROW {
            assert_eq!(busy_poll.note_answer(false, false, now), None);
        }
    }

    #[test]
    fn contention_doubles_the_interval_at_home() {
        let (mut busy_poll, mut now, waited) = busy_poll();
        for rest in [REST[0], 2 * REST[0], 4 * REST[0]] {
            assert!(goes_away(&mut busy_poll, now));
            waited.set(waited.get() + MS / 10);
            now += 2 * MS;
            assert_eq!(
                busy_poll.note_answer(false, true, now),
                None,
                "a short wait"
            );
            waited.set(waited.get() + MS);
            now += 2 * MS;
            assert_eq!(
                busy_poll.note_answer(false, true, now),
                Some(Migration::Home)
            );
            assert!(!goes_away(&mut busy_poll, now + rest - MS));
            now += rest;
        }
        assert!(goes_away(&mut busy_poll, now));
        now += 4 * REST[0] + MS;
        assert_eq!(busy_poll.note_answer(false, true, now), None, "in peace");
        waited.set(waited.get() + MS);
        now += 2 * MS;
        assert_eq!(
            busy_poll.note_answer(false, true, now),
            Some(Migration::Home)
        );
        assert!(goes_away(&mut busy_poll, now + REST[0]));
    }

    #[test]
    fn scheduler_statistics_are_parsed() {
        let file = std::env::temp_dir().join(format!("tuff-schedstat-{}", std::process::id()));
        let says = |text: &str| {
            std::fs::write(&file, text).unwrap();
            waited(&File::open(&file).unwrap())
        };
        assert_eq!(says("7164283 1500 12\n"), Some(Duration::from_nanos(1500)));
        assert_eq!(says("0 0 0\n"), None);
        assert_eq!(says(""), None);
        assert_eq!(says("1 x 2\n"), None);
        std::fs::remove_file(&file).unwrap();
    }
}
