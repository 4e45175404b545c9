//! Chunks to fetch, by their priority.

use super::pace::Durations;
use crate::client::link::Purpose;
use crate::error::{Error, Result};
use crate::trace::Reason;
use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::ops::Range;
use std::sync::{Arc, OnceLock, Weak};

/// Longest request. Unit: bytes.
pub(super) const PART_MAX: u64 = 2 << 20;

/// Shortest and longest range that a sequential reader is ahead of its last miss. The shortest is some times what is asked for
/// around a miss, up to 1 MiB. Unit: bytes.
const AHEAD_MIN: u64 = 1 << 20;
const AHEAD_MAX: u64 = 8 << 20;
const AHEAD_FACTOR: u64 = 4;

/// Number of sequential readers that are told apart.
const STREAMS: usize = 16;

/// Number of misses in a row of what no list names, without a read of what it names, after which the list is no better than
/// a fill.
const MISSES_MAX: u32 = 4;

/// Number of chunks of the list that are looked at with each miss.
const LOOKED_AT: usize = 256;

/// Neighbours that wait for their turn at most, and that are fetched and not read. Unit: bytes.
const NEIGHBOURS_MAX: u64 = 64 << 20;

/// Result of a fetch, once there is one: bytes of the chunk that waiting readers share.
pub(super) type Slot = Arc<OnceLock<Result<Arc<Vec<u8>>>>>;

/// Slot of a request, which another request for the same chunk does not have.
pub(super) type OwnSlot = Weak<OnceLock<Result<Arc<Vec<u8>>>>>;

/// Priority of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Priority {
    /// A reader waits for its first chunk.
    Demand,
    /// A reader is expected to want it next.
    Ahead,
    /// The profile that the user gave, or that was recorded.
    Profile,
    /// The list that came with the image.
    List,
    /// Neighbours of what a reader wanted.
    Near,
    /// The rest of the image.
    Fill,
}

impl Priority {
    /// Reason in the trace.
    pub(super) fn reason(self) -> Reason {
        match self {
            Self::Demand => Reason::Demand,
            Self::Ahead => Reason::Ahead,
            Self::Profile => Reason::Profile,
            Self::List => Reason::List,
            Self::Near => Reason::Near,
            Self::Fill => Reason::Fill,
        }
    }
}

/// Numbers of requests in flight.
#[derive(Default)]
pub(super) struct InFlight {
    pub(super) demand: usize,
    pub(super) background: usize,
    /// Length of the requests in `background`. Unit: bytes.
    pub(super) background_bytes: u64,
}

impl InFlight {
    /// Number of all requests in flight.
    pub(super) fn all(&self) -> usize {
        self.demand + self.background
    }
}

/// Chunks in the order in which they are wanted.
#[derive(Default)]
pub(super) struct Ordered {
    pending: HashSet<u64>,
    /// Some of them may have left `pending`.
    order: VecDeque<u64>,
}

impl Ordered {
    /// Adds a chunk at the end, unless it is there.
    pub(super) fn push(&mut self, chunk: u64) {
        if self.pending.insert(chunk) {
            self.order.push_back(chunk);
        }
    }

    /// Returns a chunk to the front.
    fn push_front(&mut self, chunk: u64) {
        if self.pending.insert(chunk) {
            self.order.push_front(chunk);
        }
    }

    fn first(&mut self) -> Option<u64> {
        while let Some(chunk) = self.order.front() {
            if self.pending.contains(chunk) {
                return Some(*chunk);
            }
            self.order.pop_front();
        }
        None
    }

    pub(super) fn len(&self) -> usize {
        self.pending.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    pub(super) fn contains(&self, chunk: u64) -> bool {
        self.pending.contains(&chunk)
    }

    pub(super) fn clear(&mut self) {
        self.pending.clear();
        self.order.clear();
    }
}

/// Bound of what a list causes that no program reads.
#[derive(Default)]
pub(super) struct ListUse {
    /// Number of chunks that may be fetched and not read.
    pub(super) unread_max: usize,
    /// Chunks that were fetched, and are not known to have been read.
    unread: VecDeque<u64>,
    /// Number of misses in a row without a read of what the list names. Those of neighbours count once.
    misses: u32,
    last_miss: Option<u64>,
}

impl ListUse {
    /// Notes a reader that wants a chunk. `is_listed`: the list names it.
    fn note(&mut self, chunk: u64, is_listed: bool, is_read: impl Fn(u64) -> bool) {
        let before = self.unread.len();
        let looked_at = before.min(LOOKED_AT);
        let mut kept = VecDeque::new();
        for n in 0..looked_at {
            let listed = self.unread[n];
            if listed != chunk && !is_read(listed) {
                kept.push_back(listed);
            }
        }
        kept.extend(self.unread.range(looked_at..));
        self.unread = kept;
        let is_used = is_listed || self.unread.len() < before;
        let is_neighbour = self.last_miss.is_some_and(|last| last.abs_diff(chunk) <= 1);
        self.last_miss = Some(chunk);
        self.misses = match is_used {
            true => 0,
            false => self.misses.saturating_add(u32::from(!is_neighbour)),
        };
    }

    /// True if programs read something else.
    fn is_useless(&self) -> bool {
        self.misses >= MISSES_MAX
    }

    /// Number of chunks that may be fetched.
    fn room(&self) -> u64 {
        self.unread_max.saturating_sub(self.unread.len()) as u64
    }

    fn has_room(&self) -> bool {
        self.room() > 0
    }
}

pub(super) struct Queue {
    /// Length of a chunk. Unit: bytes.
    chunk_size: u64,
    /// Chunks that a reader waits for.
    pub(super) demand: BTreeSet<u64>,
    /// Chunks that a reader is expected to want.
    pub(super) ahead: BTreeSet<u64>,
    pub(super) profile: Ordered,
    pub(super) list: Ordered,
    pub(super) list_use: ListUse,
    pub(super) near: Ordered,
    near_use: ListUse,
    /// Results of the chunks in `demand` and of those in flight.
    pub(super) slots: HashMap<u64, Slot>,
    pub(super) in_flight: InFlight,
    pub(super) fill: FillState,
    /// True while a task starts requests that no reader waits for.
    pub(super) is_pumping: bool,
    /// True after the last reader has closed the image.
    pub(super) is_closed: bool,
    pub(super) durations: Durations,
    streams: [Stream; STREAMS],
    next_stream: usize,
}

/// State of the background fill.
#[derive(Default)]
pub(super) struct FillState {
    pub(super) is_running: bool,
    /// Number of requests in flight.
    pub(super) in_flight: usize,
    /// Number of failures since the last success.
    pub(super) failures: u32,
    /// Failure of a request, which the fill has not seen yet.
    pub(super) failed: Option<FillFailure>,
    /// Failure that ended the fill.
    pub(super) end: Option<Error>,
}

/// Failure of a request of the fill.
pub(super) struct FillFailure {
    pub(super) error: Error,
    /// True if later requests cannot succeed either.
    pub(super) is_final: bool,
}

/// Sequential reader: what was asked for on its behalf, and how far ahead that is.
#[derive(Clone, Copy, Default)]
struct Stream {
    start: u64,
    end: u64,
    ahead: u64,
}

impl Queue {
    /// Empty queue for an image in chunks of `chunk_size` bytes.
    pub(super) fn new(chunk_size: u64) -> Self {
        Self {
            chunk_size,
            demand: BTreeSet::new(),
            ahead: BTreeSet::new(),
            profile: Ordered::default(),
            list: Ordered::default(),
            list_use: ListUse::default(),
            near: Ordered::default(),
            near_use: ListUse::default(),
            slots: HashMap::new(),
            in_flight: InFlight::default(),
            fill: FillState::default(),
            is_pumping: false,
            is_closed: false,
            durations: Durations::default(),
            streams: Default::default(),
            next_stream: 0,
        }
    }

    /// Largest number of chunks in one request.
    pub(super) fn part_max(&self) -> u64 {
        PART_MAX / self.chunk_size
    }

    /// Largest number of neighbours.
    pub(super) fn neighbours_max(&self) -> usize {
        (NEIGHBOURS_MAX / self.chunk_size) as usize // fits: at most 2048
    }

    /// Chunks to ask for with those that a reader wants: `near` from the first one on, and more for a sequential reader. No more
    /// than `least` while a profile or list is fetched, which knows better.
    pub(super) fn around(&mut self, needed: &Range<u64>, near: u64, least: u64) -> Range<u64> {
        let chunk = needed.start;
        let near = match self.has_list() {
            true => least,
            false => near,
        };
        let known = self
            .streams
            .iter_mut()
            .find(|s| (s.start..=s.end).contains(&chunk) && s.end > 0);
        if let Some(stream) = known {
            // Within what was asked for, it is on its way.
            if chunk < stream.end {
                return needed.clone();
            }
            let first = (near * AHEAD_FACTOR).min(AHEAD_MIN / self.chunk_size);
            stream.ahead = (stream.ahead * 2).clamp(first, AHEAD_MAX / self.chunk_size);
            (stream.start, stream.end) = (chunk, chunk + near + stream.ahead);
            return chunk..stream.end;
        }
        let next = self.next_stream % STREAMS;
        self.streams[next] = Stream {
            start: chunk,
            end: chunk + near,
            ahead: 0,
        };
        self.next_stream += 1;
        chunk..needed.end.max(chunk + near)
    }

    /// True while a profile or list is fetched that programs seem to follow.
    pub(super) fn has_list(&self) -> bool {
        let has_list = !self.profile.is_empty() || !self.list.is_empty();
        has_list && !self.list_use.is_useless()
    }

    /// First chunk that no reader waits for, in the order of priorities.
    pub(super) fn next_background(&mut self) -> Option<(u64, Priority, Purpose)> {
        if let Some(chunk) = self.ahead.first() {
            return Some((*chunk, Priority::Ahead, Purpose::Ahead));
        }
        if let Some(chunk) = self.profile.first() {
            return Some((chunk, Priority::Profile, Purpose::List));
        }
        let list = match self.list_use.has_room() {
            true => self.list.first(),
            false => None,
        };
        if let Some(chunk) = list.filter(|_| !self.list_use.is_useless()) {
            return Some((chunk, Priority::List, Purpose::List));
        }
        let near = match self.near_use.unread.len() < self.neighbours_max() {
            true => self.near.first(),
            false => None,
        };
        if let Some(chunk) = near.filter(|_| !self.near_use.is_useless()) {
            return Some((chunk, Priority::Near, Purpose::List));
        }
        // A list that programs do not read is no better than a fill.
        let list = list.map(|chunk| (chunk, Priority::List, Purpose::Fill));
        list.or(near.map(|chunk| (chunk, Priority::Near, Purpose::Fill)))
    }

    /// Wanted chunks from `start` on, at most `max` of them. Those before it come too, unless a reader waits for `start`.
    pub(super) fn run_at(&self, start: u64, max: u64, priority: Priority) -> Range<u64> {
        self.run_over_gaps(start, max, priority, 0, |_| false)
    }

    /// The same, over gaps of at most `gap` chunks after `start`, all of which are absent.
    pub(super) fn run_over_gaps(
        &self,
        start: u64,
        max: u64,
        priority: Priority,
        gap: u64,
        is_absent: impl Fn(u64) -> bool,
    ) -> Range<u64> {
        let is_wanted = |chunk: u64| {
            self.demand.contains(&chunk)
                || self.ahead.contains(&chunk)
                || self.profile.contains(chunk)
                || self.list.contains(chunk) && self.list_use.has_room()
                || self.near.contains(chunk)
        };
        let room = match priority {
            Priority::List => self.list_use.room(),
            _ => u64::MAX,
        };
        let max = max.min(room).clamp(1, self.part_max());
        let mut run = start..start + 1;
        let is_full = |run: &Range<u64>| run.end - run.start >= max;
        // A gap ends with a wanted chunk, and none of it is in flight.
        let next = |run: &Range<u64>| {
            let ends = run.end..=(run.end + gap).min(run.start + max - 1);
            let end = ends.clone().find(|chunk| is_wanted(*chunk))?;
            let is_free = |chunk: u64| !self.slots.contains_key(&chunk) && is_absent(chunk);
            (run.end..end).all(is_free).then_some(end + 1)
        };
        while !is_full(&run)
            && let Some(end) = next(&run)
        {
            run.end = end;
        }
        while priority != Priority::Demand
            && !is_full(&run)
            && run.start > 0
            && is_wanted(run.start - 1)
        {
            run.start -= 1;
        }
        run
    }

    /// Takes the chunks of a run from the queue: they are in flight. Returns the places of their results.
    pub(super) fn take(&mut self, run: Range<u64>, priority: Priority) -> Vec<OwnSlot> {
        let take = |chunk| {
            let is_demand = self.demand.remove(&chunk);
            self.ahead.remove(&chunk);
            self.profile.pending.remove(&chunk);
            let is_near = self.near.pending.remove(&chunk);
            let is_listed = self.list.pending.remove(&chunk);
            if !is_demand && priority != Priority::Fill {
                // A chunk that is not named is in a gap between those that are.
                if is_listed || priority == Priority::List {
                    self.list_use.unread.push_back(chunk);
                } else if is_near {
                    self.near_use.unread.push_back(chunk);
                }
            }
            Arc::downgrade(self.slots.entry(chunk).or_default())
        };
        run.map(take).collect()
    }

    /// Returns a chunk to the queue, whose request the server has refused.
    pub(super) fn put_back(&mut self, chunk: u64, priority: Priority) {
        match priority {
            Priority::Demand => _ = self.demand.insert(chunk),
            Priority::Ahead => _ = self.ahead.insert(chunk),
            Priority::Profile => self.profile.push_front(chunk),
            Priority::List => {
                self.list.push_front(chunk);
                self.list_use.unread.retain(|unread| *unread != chunk);
            }
            Priority::Near => {
                self.near.push_front(chunk);
                self.near_use.unread.retain(|unread| *unread != chunk);
            }
            // Its next pass finds the chunk.
            Priority::Fill => {}
        }
    }

    /// Notes a reader that wants a chunk which is not in the cache.
    pub(super) fn note_wanted(&mut self, chunk: u64, is_read: impl Fn(u64) -> bool) {
        for (list, used) in [
            (&self.list, &mut self.list_use),
            (&self.near, &mut self.near_use),
        ] {
            if !list.is_empty() || !used.unread.is_empty() {
                used.note(chunk, list.contains(chunk), &is_read);
            }
        }
    }

    /// True if a chunk is queued.
    pub(super) fn is_wanted(&self, chunk: u64) -> bool {
        let is_urgent = self.demand.contains(&chunk) || self.ahead.contains(&chunk);
        let lists = [&self.profile, &self.list, &self.near];
        is_urgent || lists.iter().any(|list| list.contains(chunk))
    }

    /// Chunk that a reader waits for.
    pub(super) fn demand(&mut self, chunk: u64) {
        self.ahead.remove(&chunk);
        self.profile.pending.remove(&chunk);
        self.list.pending.remove(&chunk);
        self.near.pending.remove(&chunk);
        self.demand.insert(chunk);
    }

    /// Drops what no reader waits for.
    pub(super) fn clear_background(&mut self) {
        self.ahead.clear();
        self.profile.clear();
        self.list.clear();
        self.near.clear();
    }

    /// Number of chunks that are queued ahead of readers.
    pub(super) fn queued(&self) -> usize {
        self.ahead.len() + self.profile.len() + self.list.len() + self.near.len()
    }

    /// True if nothing but the fill has work.
    pub(super) fn is_quiet(&mut self) -> bool {
        let next = self.next_background();
        self.demand.is_empty() && next.is_none_or(|(_, _, purpose)| purpose == Purpose::Fill)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::LONG_CHUNK;

    fn queue() -> Queue {
        Queue::new(LONG_CHUNK)
    }

    fn list(chunks: impl IntoIterator<Item = u64>) -> Ordered {
        let mut list = Ordered::default();
        chunks.into_iter().for_each(|chunk| list.push(chunk));
        list
    }

    /// All runs that no reader waits for, in their order.
    fn runs(queue: &mut Queue) -> Vec<(Range<u64>, Priority)> {
        let next = || {
            let (chunk, priority, _) = queue.next_background()?;
            let run = queue.run_at(chunk, 16, priority);
            queue.take(run.clone(), priority);
            Some((run, priority))
        };
        std::iter::from_fn(next).collect()
    }

    #[test]
    fn a_request_begins_with_what_its_reader_wants() {
        let mut queue = queue();
        queue.demand.extend([20, 21, 30]);
        queue.ahead.extend([18, 19, 22]);
        queue.near = list([23, 24]);
        let run = |queue: &Queue, max| queue.run_at(20, max, Priority::Demand);
        assert_eq!(run(&queue, 16), 20..25);
        assert_eq!(run(&queue, 2), 20..22);
        assert_eq!(run(&queue, 0), 20..21);
        queue.ahead.extend(25..60);
        assert_eq!(run(&queue, 64), 20..36);
    }

    #[test]
    fn priorities_keep_their_order_and_adjacent_chunks_go_into_one_request() {
        let mut queue = queue();
        queue.list_use.unread_max = 100;
        queue.near = list([60, 61]);
        queue.list = list([50, 80]);
        queue.profile = list([40, 7, 41, 3]);
        queue.ahead.insert(90);
        assert_eq!(
            runs(&mut queue),
            [
                (90..91, Priority::Ahead),
                (40..42, Priority::Profile),
                (7..8, Priority::Profile),
                (3..4, Priority::Profile),
                (50..51, Priority::List),
                (80..81, Priority::List),
                (60..62, Priority::Near),
            ]
        );
    }

    #[test]
    fn a_request_crosses_small_gaps_of_absent_chunks() {
        let mut queue = queue();
        queue.list_use.unread_max = 100;
        queue.list = list([10, 11, 14, 18, 30]);
        let run = |queue: &Queue, max, gap, present| {
            queue.run_over_gaps(10, max, Priority::List, gap, |chunk| chunk != present)
        };
        assert_eq!(run(&queue, 16, 0, 99), 10..12);
        assert_eq!(run(&queue, 16, 2, 99), 10..15);
        assert_eq!(run(&queue, 16, 3, 99), 10..19);
        assert_eq!(run(&queue, 4, 3, 99), 10..12);
        assert_eq!(run(&queue, 16, 3, 12), 10..12);
        queue.slots.insert(16, Slot::default());
        assert_eq!(run(&queue, 16, 3, 99), 10..15);
        queue.take(10..15, Priority::List);
        assert_eq!(queue.list_use.unread, [10, 11, 12, 13, 14]);
    }

    #[test]
    fn a_pending_list_replaces_reading_on() {
        let mut queue = queue();
        assert_eq!(queue.around(&(19..20), 4, 1), 19..23);
        queue.profile.push(100);
        assert_eq!(queue.around(&(35..36), 4, 1), 35..36);
        // A sequential reader goes on.
        assert_eq!(queue.around(&(23..24), 4, 1), 23..28);
        assert_eq!(queue.around(&(26..27), 4, 1), 26..27);
        assert_eq!(queue.around(&(28..29), 4, 1), 28..37);
    }

    #[test]
    fn a_list_that_nothing_reads_has_a_bound_and_gives_way() {
        let mut queue = queue();
        queue.list_use.unread_max = 2;
        queue.list = list([10, 20, 30, 40]);
        assert_eq!(
            runs(&mut queue),
            [(10..11, Priority::List), (20..21, Priority::List)]
        );
        // A read of what was fetched makes room.
        queue.note_wanted(99, |chunk| chunk == 10);
        assert_eq!(runs(&mut queue), [(30..31, Priority::List)]);
        queue.note_wanted(20, |_| false);
        for n in 1..MISSES_MAX {
            let chunk = 100 * u64::from(n);
            queue.note_wanted(chunk, |_| false);
            queue.note_wanted(chunk + 1, |_| false);
        }
        queue.near.push(70);
        assert_eq!(
            queue.next_background(),
            Some((40, Priority::List, Purpose::List))
        );
        queue.note_wanted(900, |_| false);
        assert_eq!(
            queue.next_background(),
            Some((70, Priority::Near, Purpose::List))
        );
        queue.take(70..71, Priority::Near);
        let idle = Some((40, Priority::List, Purpose::Fill));
        assert_eq!(queue.next_background(), idle);
        assert!(queue.is_quiet());
        // A reader that wants what it names.
        queue.note_wanted(40, |_| false);
        assert_eq!(
            queue.next_background(),
            Some((40, Priority::List, Purpose::List))
        );
    }

    #[test]
    fn a_refused_request_returns_to_the_front() {
        let mut queue = queue();
        queue.list_use.unread_max = 9;
        queue.list = list([10, 20]);
        queue.take(10..11, Priority::List);
        queue.slots.clear();
        queue.put_back(10, Priority::List);
        let (ten, twenty) = ((10..11, Priority::List), (20..21, Priority::List));
        assert_eq!(runs(&mut queue), [ten, twenty]);
    }
}
