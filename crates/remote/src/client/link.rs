//! Link to a server: its measured pace, and what is in flight on it, for all objects that one client reads.
//!
//! Requests that no reader waits for share the link with those of readers. Only so much of them is in flight that the link
//! stays busy: less than bandwidth x round trip, and one part more. What a reader asks for waits behind that part at most.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// Number of recent samples of the bandwidth, of which the largest counts.
const RATES: usize = 4;

/// Bytes of one sample. Unit: bytes.
const SAMPLE_LEN: u64 = 256 << 10;

/// Shortest time of a sample. Bytes that the kernel has kept arrive at once.
const SAMPLE_TIME_MIN: Duration = Duration::from_millis(1);

/// Fewest bytes that tell of the bandwidth while there is no sample. Unit: bytes.
const FIRST_LEN_MIN: u64 = 64 << 10;

/// Assumptions about a link that was not measured.
const UNKNOWN_BANDWIDTH: f64 = 4e6;
const UNKNOWN_ROUND_TRIP: Duration = Duration::from_millis(20);

/// Multiple of the shortest round trip that a longer one counts as at most: requests wait behind one another.
const ROUND_TRIP_GROWTH_MAX: u32 = 3;

/// Time that a part takes on the link which no reader waits for.
const PART_TIME: Duration = Duration::from_millis(20);

/// Shortest time on the link for the neighbours of what a reader wants. They delay it by no more.
const AROUND_TIME_MIN: Duration = Duration::from_millis(8);

/// Time on the link of a gap that costs less than a request.
const GAP_TIME: Duration = Duration::from_millis(1);

/// Share of bandwidth x round trip below which another part is requested. Below 1, so that a queue does not lengthen the round
/// trip that it is computed from.
const BUSY_SHARE: f64 = 0.75;

/// The same of the shortest round trip where parts are chunks and more, so that the link has no pauses between them.
const BUSY_SHARE_FAST: f64 = 1.5;

/// Growth from one sample to the next of a link whose connections have not reached their speed, and the number of samples without
/// it after which they have.
const GROWTH: f64 = 1.25;
const GROWTH_SAMPLES: u32 = 2;

/// Factor of what is in flight, and of parts, while the bandwidth grows: a slow start doubles it in each round trip.
const GROWTH_GAIN: f64 = 2.5;

/// Largest number of bytes in flight that no reader waits for. Unit: bytes.
const IN_FLIGHT_MAX: f64 = (8 << 20) as f64;

/// Bytes of a request that arrive before others look whether the link has room. Unit: bytes.
const NOTIFY_STEP: u64 = 32 << 10;

/// Shortest request that no reader waits for, and the unit of shorter ones than a chunk. Unit: bytes.
pub(crate) const STEP_MIN: u64 = 32 << 10;
const STEP_UNIT: u64 = 4 << 10;

/// Longest time for which a request that has begun lets readers go first: a reader may wait for its rest.
const YIELD_MAX: Duration = Duration::from_millis(500);

/// Shortest request that is not divided. Unit: bytes.
const WHOLE_LEN: f64 = (128 << 10) as f64;

/// Bytes at the start of a request that its reader waits for. Unit: bytes.
const DEMAND_MAX: u64 = 128 << 10;

/// Pause after a refusal without a stated one, the shortest and the longest. Readers repeat their requests meanwhile.
const PAUSE: Duration = Duration::from_secs(1);
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// Multiple of the pause that the fill waits.
const FILL_PAUSES: u32 = 2;

/// Link to a server.
#[derive(Default)]
pub(crate) struct Link {
    state: Mutex<State>,
    /// Wakes those who have requests that no reader waits for.
    pub(crate) changed: Notify,
}

struct State {
    meter: Meter,
    /// Recent round trip, and the shortest one.
    round_trip: Option<(Duration, Duration)>,
    /// Number of readers that wait.
    waiting: usize,
    /// Number of requests whose first chunk a reader waits for, and their bytes.
    demands: usize,
    demand_bytes: u64,
    /// Time since which no reader waits.
    idle_since: Instant,
    /// Requests that no reader waits for, and their bytes that have not arrived.
    requests: usize,
    bytes: u64,
    /// Times before which the server wants no request but those of readers, and none of the fill.
    pause_end: Option<Instant>,
    fill_pause_end: Option<Instant>,
    /// True from a refusal to the next success: one request at a time.
    is_refused: bool,
}

impl Default for State {
    fn default() -> Self {
        Self {
            meter: Meter::default(),
            round_trip: None,
            waiting: 0,
            demands: 0,
            demand_bytes: 0,
            idle_since: Instant::now(),
            requests: 0,
            bytes: 0,
            pause_end: None,
            fill_pause_end: None,
            is_refused: false,
        }
    }
}

/// Bytes that arrive while at least one answer is on its way.
struct Meter {
    /// Number of answers on their way.
    bodies: usize,
    /// Start of the time that is not counted yet.
    since: Option<Instant>,
    bytes: u64,
    time: Duration,
    rates: [f64; RATES],
    next_rate: usize,
    /// Number of samples without growth after which connections are as fast as they will be.
    growth_left: u32,
}

impl Default for Meter {
    fn default() -> Self {
        Self {
            bodies: 0,
            since: None,
            bytes: 0,
            time: Duration::ZERO,
            rates: [0.0; RATES],
            next_rate: 0,
            growth_left: GROWTH_SAMPLES,
        }
    }
}

impl Meter {
    /// Counts the time up to `now`.
    fn count(&mut self, now: Instant) {
        if let Some(since) = self.since {
            self.time += now.saturating_duration_since(since);
        }
        self.since = (self.bodies > 0).then_some(now);
    }

    fn arrived(&mut self, bytes: u64, now: Instant) {
        self.count(now);
        self.bytes += bytes;
        if self.bytes >= SAMPLE_LEN && self.time >= SAMPLE_TIME_MIN {
            let rate = self.bytes as f64 / self.time.as_secs_f64();
            self.growth_left = match rate > self.largest() * GROWTH && self.next_rate > 0 {
                true => GROWTH_SAMPLES,
                false => self.growth_left.saturating_sub(1),
            };
            self.rates[self.next_rate % RATES] = rate;
            self.next_rate += 1;
            (self.bytes, self.time) = (0, Duration::ZERO);
        }
    }

    fn largest(&self) -> f64 {
        self.rates.iter().copied().fold(0.0, f64::max)
    }

    fn bandwidth(&self) -> Option<f64> {
        let largest = self.largest();
        if largest > 0.0 {
            return Some(largest);
        }
        let time = self.time.max(SAMPLE_TIME_MIN).as_secs_f64();
        (self.bytes >= FIRST_LEN_MIN).then(|| self.bytes as f64 / time)
    }
}

/// Bandwidth and round trip of a link, as measured or assumed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// Unit: bytes per second.
    bandwidth: f64,
    round_trip: Duration,
    is_growing: bool,
}

impl Pace {
    /// Bytes that cross the link in some time.
    fn in_time(self, time: Duration) -> f64 {
        self.bandwidth * time.as_secs_f64()
    }

    /// Number of bytes to ask for with what a reader wants: bandwidth x round trip.
    pub(crate) fn around(self) -> u64 {
        self.in_time(self.round_trip.max(AROUND_TIME_MIN)) as u64 // fits: checked by the caller's bound
    }

    /// Bytes that delay a reader by no more than a fraction of a usual round trip.
    pub(crate) fn least(self) -> u64 {
        self.in_time(AROUND_TIME_MIN) as u64 // fits: as above
    }

    /// Longest gap between bytes of a list that one request fetches: it takes less of the link than another request.
    pub(crate) fn gap(self) -> u64 {
        self.in_time(GAP_TIME) as u64 // fits: as above
    }

    /// Bytes that cross the link in a second.
    pub(crate) fn in_a_second(self) -> u64 {
        self.bandwidth as u64 // fits: as above
    }

    /// Factor of what no reader waits for.
    fn gain(self) -> f64 {
        if self.is_growing { GROWTH_GAIN } else { 1.0 }
    }

    /// Length of a request that no reader waits for.
    pub(crate) fn part(self) -> u64 {
        (self.in_time(PART_TIME) * self.gain()) as u64 // fits: as above
    }

    /// Length after which such a request lets readers go first. Shorter than a chunk at a low bandwidth.
    pub(crate) fn step(self) -> u64 {
        match self.part() {
            part if (part as f64) < WHOLE_LEN && !self.is_growing => {
                (part / STEP_UNIT * STEP_UNIT).max(STEP_MIN)
            }
            _ => u64::MAX,
        }
    }
}

/// Purpose of a request that no reader waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A reader is expected to want it next.
    Ahead,
    /// A program is expected to want it.
    List,
    /// It is absent.
    Fill,
}

/// Permission for a request that no reader waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    Go,
    /// Not before something changes, and not before this time has passed, if it is known.
    Wait(Option<Duration>),
}

impl State {
    fn pace(&self) -> Pace {
        let round_trip = self.round_trip.map(|(recent, shortest)| {
            // A short one is no measure: it may be that of a cache on the way.
            recent.min(shortest * ROUND_TRIP_GROWTH_MAX)
        });
        Pace {
            bandwidth: self.meter.bandwidth().unwrap_or(UNKNOWN_BANDWIDTH),
            round_trip: round_trip.unwrap_or(UNKNOWN_ROUND_TRIP),
            is_growing: self.meter.growth_left > 0,
        }
    }

    /// Counts a demand no more, with its bytes.
    fn end_demand(&mut self, bytes: u64) {
        self.demands -= 1;
        self.demand_bytes -= bytes;
    }

    /// Bytes in flight below which another part is requested that no reader waits for.
    fn busy(&self, pace: Pace) -> f64 {
        let busy = pace.in_time(pace.round_trip) * BUSY_SHARE * pace.gain();
        let shortest = self.round_trip.map(|(_, shortest)| shortest);
        match shortest.filter(|_| pace.step() == u64::MAX) {
            Some(shortest) => busy.max(pace.in_time(shortest) * BUSY_SHARE_FAST),
            None => busy,
        }
    }

    fn turn(&self, purpose: Purpose, part: u64, now: Instant) -> Turn {
        let pause = match purpose {
            Purpose::Fill => self.fill_pause_end,
            Purpose::Ahead | Purpose::List => self.pause_end,
        };
        if let Some(left) = pause.and_then(|end| end.checked_duration_since(now)) {
            return Turn::Wait(Some(left));
        }
        if self.is_refused && self.requests > 0 {
            return Turn::Wait(None);
        }
        let (pace, bytes) = (self.pace(), self.bytes as f64);
        let busy = self.busy(pace);
        let room = match purpose {
            Purpose::Ahead => pace.in_time(pace.round_trip + PART_TIME),
            // Bytes that readers wait for are on their way.
            Purpose::List => busy - self.demand_bytes as f64,
            Purpose::Fill => busy,
        };
        if purpose == Purpose::Fill {
            if self.waiting > 0 || self.demands > 0 {
                return Turn::Wait(None);
            }
            // A link that was idle for a time will be so again: a program that reads all the time is not disturbed.
            let needed = Duration::from_secs_f64((bytes + part as f64) / pace.bandwidth.max(1.0));
            let idle = now.saturating_duration_since(self.idle_since);
            if idle < needed {
                return Turn::Wait(Some(needed - idle));
            }
        }
        let is_alone = self.requests == 0 && (self.demands == 0 || purpose == Purpose::Ahead);
        match is_alone || bytes <= room.min(IN_FLIGHT_MAX) {
            true => Turn::Go,
            false => Turn::Wait(None),
        }
    }
}

impl Link {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts the time from a request to the start of its answer. One that is longer than usual counts little: it may be the
    /// server's.
    pub(crate) fn answered_after(&self, time: Duration) {
        let time = time.max(Duration::from_micros(1));
        let mut state = self.state();
        let (recent, shortest) = state.round_trip.unwrap_or((time, time));
        state.round_trip = Some((time.min(recent + recent / 64), time.min(shortest)));
    }

    /// Notes that the body of an answer is on its way.
    pub(crate) fn body(self: &Arc<Self>) -> Body {
        let mut state = self.state();
        state.meter.bodies += 1;
        state.meter.count(Instant::now());
        Body(Arc::clone(self))
    }

    /// Returns the pace as measured, or as assumed before that.
    pub(crate) fn pace(&self) -> Pace {
        self.state().pace()
    }

    /// Returns the shortest round trip and the bandwidth in bytes per second, as far as they were measured.
    pub(crate) fn measured(&self) -> (Option<Duration>, Option<u64>) {
        let state = self.state();
        let round_trip = state.round_trip.map(|(_, shortest)| shortest);
        // Fits: rounded.
        let bandwidth = state.meter.bandwidth().map(|bandwidth| bandwidth as u64);
        (round_trip, bandwidth)
    }

    /// Notes a reader that waits.
    pub(crate) fn wait(self: &Arc<Self>) -> Waiting {
        self.state().waiting += 1;
        Waiting(Arc::clone(self))
    }

    /// Notes a request of `len` bytes whose first chunk a reader waits for.
    pub(crate) fn demand(self: &Arc<Self>, len: u64) -> InFlight {
        let len = len.clamp(1, DEMAND_MAX);
        let mut state = self.state();
        state.demands += 1;
        state.demand_bytes += len;
        InFlight {
            link: Arc::clone(self),
            is_demand: true,
            left: AtomicU64::new(len),
        }
    }

    /// Waits until no reader waits for the first chunk of a request, but not for long.
    pub(crate) async fn yield_to_readers(&self) {
        let quiet = async {
            loop {
                let mut changed = std::pin::pin!(self.changed.notified());
                // A change from here on counts.
                changed.as_mut().enable();
                if self.state().demands == 0 {
                    return;
                }
                changed.await;
            }
        };
        let _ = tokio::time::timeout(YIELD_MAX, quiet).await;
    }

    /// Notes a request of `len` bytes that no reader waits for.
    pub(crate) fn background(self: &Arc<Self>, len: u64) -> InFlight {
        let mut state = self.state();
        state.requests += 1;
        state.bytes += len;
        InFlight {
            link: Arc::clone(self),
            is_demand: false,
            left: AtomicU64::new(len),
        }
    }

    /// Permits a request of `part` bytes that no reader waits for.
    pub(crate) fn turn(&self, purpose: Purpose, part: u64) -> Turn {
        self.state().turn(purpose, part, Instant::now())
    }

    /// Notes that the server wants fewer requests.
    pub(crate) fn refused(&self, pause: Option<Duration>) {
        let pause = pause.unwrap_or(PAUSE).clamp(PAUSE_MIN, PAUSE_MAX);
        let (now, mut state) = (Instant::now(), self.state());
        state.is_refused = true;
        state.pause_end = state.pause_end.max(Some(now + pause));
        state.fill_pause_end = state.fill_pause_end.max(Some(now + pause * FILL_PAUSES));
    }

    /// Notes an answer with bytes.
    pub(crate) fn succeeded(&self) {
        self.state().is_refused = false;
    }
}

/// Body of an answer that is on its way.
pub(crate) struct Body(Arc<Link>);

impl Body {
    pub(crate) fn arrived(&self, bytes: usize) {
        let now = Instant::now();
        self.0.state().meter.arrived(bytes as u64, now);
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        let meter = &mut self.0.state().meter;
        meter.bodies -= 1;
        meter.count(Instant::now());
    }
}

/// Reader that waits, until the value is dropped.
pub(crate) struct Waiting(Arc<Link>);

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.waiting -= 1;
        state.idle_since = Instant::now();
        let is_idle = state.waiting == 0;
        drop(state);
        if is_idle {
            self.0.changed.notify_waiters();
        }
    }
}

/// Request in flight, until the value is dropped.
pub(crate) struct InFlight {
    link: Arc<Link>,
    is_demand: bool,
    /// Bytes that have not arrived. For a demand, those that count until its first chunk has arrived.
    left: AtomicU64,
}

impl InFlight {
    /// Counts bytes that are asked for besides those that the request began with.
    pub(crate) fn add_bytes(&self, bytes: u64) {
        if !self.is_demand {
            self.left.fetch_add(bytes, Ordering::Relaxed);
            self.link.state().bytes += bytes;
        }
    }

    /// Counts bytes that have arrived of a request that no reader waits for.
    pub(crate) fn arrived(&self, bytes: usize) {
        if !self.is_demand {
            let taken = |left: u64| Some(left.saturating_sub(bytes as u64));
            let update = self
                .left
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, taken);
            let before = update.unwrap_or(0);
            let taken = before.min(bytes as u64);
            self.link.state().bytes -= taken;
            if before / NOTIFY_STEP != (before - taken) / NOTIFY_STEP {
                self.link.changed.notify_waiters();
            }
        }
    }

    /// Notes that the first chunk of a demand has arrived.
    pub(crate) fn has_first(&self) {
        if self.is_demand {
            let left = self.left.swap(0, Ordering::Relaxed);
            if left > 0 {
                self.link.state().end_demand(left);
                self.link.changed.notify_waiters();
            }
        }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let left = self.left.swap(0, Ordering::Relaxed);
        let mut state = self.link.state();
        match self.is_demand {
            true if left > 0 => state.end_demand(left),
            true => {}
            false => {
                state.requests -= 1;
                state.bytes -= left;
            }
        }
        drop(state);
        self.link.changed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Link of a bandwidth in Mbit/s and a round trip of 20 ms.
    fn link(megabits: f64) -> State {
        let mut state = State {
            round_trip: Some((20 * MS, 20 * MS)),
            ..State::default()
        };
        state.meter.rates[0] = megabits * 1e6 / 8.0;
        state.meter.growth_left = 0;
        state
    }

    fn go(state: &State, purpose: Purpose) -> bool {
        let later = state.idle_since + Duration::from_secs(10);
        state.turn(purpose, state.pace().part(), later) == Turn::Go
    }

    #[test]
    fn parts_follow_the_bandwidth() {
        for (megabits, around, part) in [
            (20.0, 50_000, 50_000),
            (100.0, 250_000, 250_000),
            (1000.0, 2_500_000, 2_500_000),
        ] {
            let pace = link(megabits).pace();
            assert_eq!((pace.around(), pace.part()), (around, part));
        }
    }

    #[test]
    fn requests_are_shorter_than_a_chunk_at_a_low_bandwidth() {
        assert_eq!(link(1.0).pace().step(), 32 << 10);
        assert_eq!(link(20.0).pace().step(), 48 << 10);
        assert_eq!(link(100.0).pace().step(), u64::MAX);
    }

    #[test]
    fn parallel_answers_add_up_and_pauses_do_not_count() {
        let mut meter = Meter::default();
        let mut now = Instant::now();
        assert_eq!(meter.bandwidth(), None);
        for _ in 0..2 {
            meter.bodies = 2;
            meter.count(now);
            now += 10 * MS;
            meter.arrived(128 << 10, now);
            meter.arrived(128 << 10, now);
            meter.bodies = 0;
            meter.count(now);
            now += 500 * MS;
        }
        assert_eq!(meter.bandwidth(), Some(f64::from(256 << 10) / 0.01));
    }

    #[test]
    fn more_is_in_flight_while_the_bandwidth_grows() {
        let mut meter = Meter::default();
        let mut now = Instant::now();
        let mut grows = Vec::new();
        meter.bodies = 1;
        meter.count(now);
        for time in [80, 40, 20, 20, 20] {
            now += time * MS;
            meter.arrived(SAMPLE_LEN, now);
            grows.push(meter.growth_left > 0);
        }
        assert_eq!(grows, [true, true, true, true, false]);
        let mut state = link(20.0);
        (state.requests, state.bytes) = (1, 60_000);
        assert!(!go(&state, Purpose::List));
        state.meter.growth_left = 1;
        assert!(go(&state, Purpose::List));
        assert_eq!(
            (state.pace().part(), state.pace().step()),
            (125_000, u64::MAX)
        );
    }

    #[test]
    fn what_is_in_flight_and_its_chunk_delay_a_reader_by_less_than_70_ms_at_20_mbit() {
        let mut state = link(20.0);
        let pace = state.pace();
        assert!(go(&state, Purpose::List) && go(&state, Purpose::Fill));
        // The most that is in flight after a part was added.
        (state.requests, state.bytes) = (1, 37_500);
        assert!(go(&state, Purpose::List));
        state.bytes += pace.step();
        assert!(!go(&state, Purpose::List) && !go(&state, Purpose::Fill));
        // Bytes that remain after a round trip, and the reader's chunk.
        let left = state.bytes as f64 - pace.in_time(pace.round_trip) + DEMAND_MAX as f64;
        assert!(left <= pace.in_time(70 * MS), "{left}");
    }

    #[test]
    fn nothing_starts_beside_a_reader_at_a_low_bandwidth() {
        for (megabits, expected) in [(20.0, false), (1000.0, true)] {
            let mut state = link(megabits);
            (state.demands, state.demand_bytes, state.waiting) = (1, DEMAND_MAX, 1);
            assert_eq!(go(&state, Purpose::List), expected);
            assert!(!go(&state, Purpose::Fill));
            // That of the reader itself.
            assert!(go(&state, Purpose::Ahead));
        }
    }

    #[test]
    fn the_fill_takes_as_much_as_the_link_was_idle() {
        let state = link(100.0);
        let turn = |idle: Duration| state.turn(Purpose::Fill, 125_000, state.idle_since + idle);
        assert_eq!(turn(4 * MS), Turn::Wait(Some(6 * MS)));
        assert_eq!(turn(10 * MS), Turn::Go);
    }

    #[test]
    fn a_refusal_pauses_the_list_and_the_fill_for_longer() {
        let link = Link::default();
        link.refused(Some(Duration::from_secs(10)));
        let state = link.state();
        let end = state.pause_end.unwrap();
        let turn = |purpose, now| state.turn(purpose, 1, now) == Turn::Go;
        assert!(!turn(Purpose::List, end - MS) && turn(Purpose::List, end + MS));
        assert!(!turn(Purpose::Fill, end + 9000 * MS) && turn(Purpose::Fill, end + 11_000 * MS));
    }

    #[test]
    fn a_queue_does_not_lengthen_the_round_trip_without_end() {
        let link = Link::default();
        link.answered_after(20 * MS);
        for _ in 0..10_000 {
            link.answered_after(500 * MS);
        }
        assert!(link.pace().round_trip <= 60 * MS);
    }

    #[test]
    fn requests_count_until_their_bytes_have_arrived() {
        let link = Arc::new(Link::default());
        let background = link.background(1000);
        background.arrived(400);
        assert_eq!(link.state().bytes, 600);
        background.arrived(900);
        let bytes = link.state().bytes;
        assert_eq!((bytes, link.state().requests), (0, 1));
        drop(background);
        let demand = link.demand(DEMAND_MAX);
        demand.arrived(100);
        assert_eq!(link.state().demands, 1);
        demand.has_first();
        drop(demand);
        let state = link.state();
        assert_eq!((state.demands, state.requests, state.bytes), (0, 0, 0));
    }
}
