//! Looking out for the next request before going to sleep.
//!
//! Who asks sleeps until he is answered, and who answers sleeps until he is asked: two changes of who runs on a processor for each
//! request, which take longer than most answers. While short requests come one after another ([`CpuLatency`](crate::schedule::cpu_latency::CpuLatency) says
//! so), a thread that has answered looks for the next one a while before it sleeps. It does so on another processor than the
//! asker's, who would have to wait for it on his own:
//!
//! ```text
//!  short requests in a row ─► away, looking ──┬─ a long request: home
//!                                             └─ others want that processor: home, for a while and then for longer
//! ```
//!
//! Invariant: nobody looks for longer than [`POLL_TIME`] after an answer, nor goes on where it has to wait for its turn.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

/// How long a thread looks: most that ask one thing after another ask within this time.
pub(crate) const POLL_TIME: Duration = Duration::from_micros(50);
/// Short requests in a row before a thread goes away. Moving takes as long as some of them.
const ROW: u32 = 32;
/// How often a thread that is away finds out whether it had to wait for the processor.
const CHECK: Duration = Duration::from_millis(1);
/// It goes home if it waited for more than this part of the time.
const WAITED: u32 = 8;
/// How long it stays at home then, the first time and at most: each time twice as long, until it has been away in peace for as long.
const REST: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(10)];

/// Where a thread is to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Migration {
    Home,
    Away,
}

/// Where a thread with a ring is, and whether it looks out there.
pub(crate) struct BusyPoll {
    /// How long the thread has waited so far for a processor that others had; `None` if nobody can say.
    waits: Box<dyn FnMut() -> Option<Duration>>,
    /// Short requests that it answered in a row, as far as that matters.
    short: u32,
    /// Since when it is away.
    away: Option<Instant>,
    /// When it looked last at what it had waited, and how long that was.
    checked: (Instant, Duration),
    /// Until when it stays at home, and for how long that was.
    rests: (Instant, Duration),
}

impl BusyPoll {
    /// For the calling thread. `None` if the kernel does not say how long it waits.
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

    /// True if the thread looks before it sleeps.
    pub(crate) fn is_polling(&self) -> bool {
        self.away.is_some()
    }

    /// A request was answered, a long one or a short one; `in_row` says if requests come in a row.
    pub(crate) fn answered(&mut self, long: bool, in_row: bool, now: Instant) -> Option<Migration> {
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

    /// Goes home if it had to wait, and for longer than the last time if that was not long ago.
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

/// The second number in a thread's `schedstat`; the first, how long it has run, is 0 where the kernel counts nothing. Source: Linux,
/// Documentation/scheduler/sched-stats.rst.
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

    /// A busy_poll, its clock, and how long it waited.
    fn busy_poll() -> (BusyPoll, Instant, Rc<Cell<Duration>>) {
        let waited = Rc::new(Cell::new(Duration::ZERO));
        let (now, waits) = (Instant::now(), waited.clone());
        let busy_poll = BusyPoll::by(Box::new(move || Some(waits.get())), now);
        (busy_poll, now, waited)
    }

    fn goes_away(busy_poll: &mut BusyPoll, now: Instant) -> bool {
        (0..4 * ROW).any(|_| busy_poll.answered(false, true, now) == Some(Migration::Away))
    }

    #[test]
    fn only_short_requests_in_a_row_send_a_thread_away() {
        let (mut busy_poll, now, _) = busy_poll();
        for _ in 0..ROW {
            assert_eq!(busy_poll.answered(false, true, now), None);
        }
        assert!(!busy_poll.is_polling());
        assert_eq!(busy_poll.answered(false, true, now), Some(Migration::Away));
        assert!(busy_poll.is_polling());
        assert_eq!(busy_poll.answered(false, true, now + 2 * MS), None);
        assert_eq!(
            busy_poll.answered(true, true, now + 2 * MS),
            Some(Migration::Home),
            "a long one"
        );
        assert!(goes_away(&mut busy_poll, now + 3 * MS));
        let end = busy_poll.answered(false, false, now + 4 * MS);
        assert_eq!(end, Some(Migration::Home), "the row is over");
        for _ in 0..10 * ROW {
            assert_eq!(busy_poll.answered(false, false, now), None);
        }
    }

    #[test]
    fn who_has_to_wait_stays_at_home_for_longer_each_time() {
        let (mut busy_poll, mut now, waited) = busy_poll();
        for rest in [REST[0], 2 * REST[0], 4 * REST[0]] {
            assert!(goes_away(&mut busy_poll, now));
            waited.set(waited.get() + MS / 10);
            now += 2 * MS;
            assert_eq!(busy_poll.answered(false, true, now), None, "a short wait");
            waited.set(waited.get() + MS);
            now += 2 * MS;
            assert_eq!(busy_poll.answered(false, true, now), Some(Migration::Home));
            assert!(!goes_away(&mut busy_poll, now + rest - MS));
            now += rest;
        }
        assert!(goes_away(&mut busy_poll, now));
        now += 4 * REST[0] + MS;
        assert_eq!(busy_poll.answered(false, true, now), None, "in peace");
        waited.set(waited.get() + MS);
        now += 2 * MS;
        assert_eq!(busy_poll.answered(false, true, now), Some(Migration::Home));
        assert!(goes_away(&mut busy_poll, now + REST[0]));
    }

    #[test]
    fn what_the_kernel_says_of_this_thread_is_understood() {
        let file = std::env::temp_dir().join(format!("tuff-lookout-{}", std::process::id()));
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
