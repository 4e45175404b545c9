//! Chunks that are handed to readers while the rest of their request is on its way, and what waits for what.

use crate::common::{CHUNK, Dir, assert_same, image, open, options, verified_image};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tuff_remote::RemoteStore;
use tuff_store::ReadAt;
use tuff_testkit::http::{Answer, Gate, Link, Request, Server};

/// Time and range of a request.
type Sent = (Instant, Range<u64>);

/// Time that no test waits for, unless it fails.
const LONG: Duration = Duration::from_secs(60);

fn range_of(request: &Request) -> Range<u64> {
    request.range(u64::MAX).unwrap()
}

fn chunks(range: Range<u64>) -> Range<u64> {
    range.start * CHUNK as u64..range.end * CHUNK as u64
}

fn read(store: &RemoteStore, bytes: &[u8], chunk: usize) {
    let mut buf = [0; 4096];
    store
        .read_exact_at(&mut buf, (chunk * CHUNK) as u64)
        .unwrap();
    assert!(buf == bytes[chunk * CHUNK..chunk * CHUNK + 4096]);
}

/// Waits until a condition holds.
fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < LONG, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Server whose answers from chunk `from` to 180 stop after a number of bytes until the gate is open.
fn stalling(bytes: &[u8], from: usize, after: usize, gate: &Gate) -> Server {
    let (bytes, gate) = (bytes.to_vec(), gate.clone());
    Server::start(move |request| {
        let mut answer = Answer::object(request, &bytes, "\"v1\"");
        if chunks(from as u64..180).contains(&range_of(request).start) {
            answer.gate = Some((after, gate.clone()));
        }
        answer
    })
}

#[test]
fn a_reader_gets_its_chunk_before_the_rest_of_its_request() {
    for (bytes, root) in [(image(8000, 80), None), {
        let (bytes, root) = verified_image(8000, 81);
        (bytes, Some(root))
    }] {
        let gate = Gate::default();
        let server = stalling(&bytes, 40, CHUNK, &gate);
        let dir = Dir::new();
        let mut options = options(&dir);
        options.root_hash = root;
        options.hedging = false;
        let store = open(&server.url("/i"), &options).unwrap();
        // The first chunk of each request comes, the others are stuck.
        store.prefetch(&[chunks(50..53)]);
        read(&store, &bytes, 50);
        read(&store, &bytes, 100);
        gate.open();
        assert_same(&store, &bytes);
    }
}

#[test]
fn a_reader_joins_a_part_in_flight() {
    let bytes = image(8000, 82);
    let gate = Gate::default();
    let server = stalling(&bytes, 40, CHUNK / 2, &gate);
    let dir = Dir::new();
    let mut options = options(&dir);
    options.hedging = false;
    let store = open(&server.url("/i"), &options).unwrap();
    server.take_requests();
    store.prefetch(&[chunks(50..51)]);
    until("the part is requested", || {
        let requests = server.take_requests();
        requests
            .iter()
            .any(|r| range_of(r).start == chunks(50..51).start)
    });
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| read(&store, &bytes, 50));
        gate.open();
        reader.join().unwrap();
    });
    let again = |r: &Request| range_of(r).start == chunks(50..51).start;
    assert!(!server.take_requests().iter().any(again));
    assert_eq!(store.stats().demand_misses, 0);
}

#[test]
fn a_reader_overtakes_queued_parts() {
    let bytes = image(8000, 83);
    let gate = Gate::default();
    let server = stalling(&bytes, 20, 0, &gate);
    let dir = Dir::new();
    let mut options = options(&dir);
    options.hedging = false;
    let store = open(&server.url("/i"), &options).unwrap();
    // Every other chunk, so that each is a request of its own. What is in flight has a limit.
    let list: Vec<Range<u64>> = (20..180).step_by(2).map(|n| chunks(n..n + 1)).collect();
    store.prefetch(&list);
    assert!(store.stats().pending_bytes >= 80 * CHUNK as u64);
    read(&store, &bytes, 199);
    // One of the list that is not requested yet.
    assert!(store.stats().pending_bytes >= 80 * CHUNK as u64);
    gate.open();
    until("the list is fetched", || store.stats().pending_bytes == 0);
    assert_same(&store, &bytes);
}

#[test]
fn a_broken_answer_goes_on_where_it_broke() {
    let (bytes, root) = verified_image(4000, 84);
    let served = bytes.clone();
    let is_first = AtomicBool::new(true);
    let server = Server::start(move |request| {
        let mut answer = Answer::object(request, &served, "\"v1\"");
        let range = range_of(request);
        if range.start == (50 * CHUNK) as u64 && is_first.swap(false, Ordering::SeqCst) {
            answer.cut = Some(CHUNK + CHUNK / 2);
        }
        answer
    });
    let dir = Dir::new();
    let mut options = options(&dir);
    options.root_hash = Some(root);
    options.hedging = false;
    let store = open(&server.url("/i"), &options).unwrap();
    let mut buf = vec![0; 3 * CHUNK];
    store.read_exact_at(&mut buf, (50 * CHUNK) as u64).unwrap();
    assert!(buf == bytes[50 * CHUNK..53 * CHUNK]);
    let again = |r: &Request| {
        let range = range_of(r);
        range.start > (50 * CHUNK) as u64 && range.start <= (51 * CHUNK + CHUNK / 2) as u64
    };
    // Only if the request had more than what broke off.
    if store.stats().retries > 0 {
        assert!(server.take_requests().iter().any(again));
    }
}

#[test]
fn a_wrong_chunk_is_fetched_again_and_the_others_are_kept() {
    let (bytes, root) = verified_image(6000, 85);
    let served = bytes.clone();
    let wrong = AtomicUsize::new(0);
    let server = Server::start(move |request| {
        let mut answer = Answer::object(request, &served, "\"v1\"");
        let range = range_of(request);
        let at = (51 * CHUNK) as u64;
        if range.contains(&at) && wrong.fetch_add(1, Ordering::SeqCst) == 0 {
            answer.body[(at - range.start) as usize] ^= 1;
        }
        answer
    });
    let dir = Dir::new();
    let mut options = options(&dir);
    options.root_hash = Some(root);
    let store = open(&server.url("/i"), &options).unwrap();
    server.take_requests();
    store.prefetch(&[chunks(50..53)]);
    read(&store, &bytes, 51);
    read(&store, &bytes, 50);
    read(&store, &bytes, 52);
    let sent = server.take_requests();
    let sent: Vec<_> = sent.iter().map(range_of).collect();
    let count = |chunk: u64| {
        sent.iter()
            .filter(|r| r.contains(&(chunk * CHUNK as u64)))
            .count()
    };
    assert_eq!([count(50), count(51), count(52)], [1, 2, 1], "{sent:?}");
}

#[test]
fn a_mount_does_not_wait_for_its_list() {
    // T-S2: the call returns before anything of the list has come.
    let bytes = image(8000, 86);
    let gate = Gate::default();
    let (served, closed) = (bytes.clone(), gate.clone());
    let server = Server::start(move |request| {
        let mut answer = Answer::object(request, &served, "\"v1\"");
        let range = range_of(request);
        if range.start >= (2 * CHUNK) as u64 && range.end < (150 * CHUNK) as u64 {
            answer.gate = Some((0, closed.clone()));
        }
        answer
    });
    let dir = Dir::new();
    let store = open(&server.url("/i"), &options(&dir)).unwrap();
    let before = store.stats().present_bytes;
    store.prefetch(&[chunks(2..140)]);
    assert!(store.stats().pending_bytes > 0);
    assert_eq!(store.stats().present_bytes, before);
    gate.open();
}

#[test]
fn refused_requests_pause_the_background_and_not_readers() {
    let bytes = image(8000, 87);
    let served = bytes.clone();
    let refuses = Arc::new(AtomicBool::new(false));
    let refused = Arc::clone(&refuses);
    // Times of the requests: of the list, of the reader, of the fill.
    let times: Arc<Mutex<Vec<Sent>>> = Arc::default();
    let noted = Arc::clone(&times);
    let server = Server::start(move |request| {
        noted
            .lock()
            .unwrap()
            .push((Instant::now(), range_of(request)));
        match refused.swap(false, Ordering::SeqCst) {
            true => Answer::status(429).with("Retry-After", 2),
            false => Answer::object(request, &served, "\"v1\""),
        }
    });
    let dir = Dir::new();
    let mut options = options(&dir);
    options.connections = 1;
    let store = open(&server.url("/i"), &options).unwrap();
    times.lock().unwrap().clear();
    refuses.store(true, Ordering::SeqCst);
    let start = Instant::now();
    store.prefetch(&[chunks(100..101), chunks(110..111)]);
    until("the list is refused", || !times.lock().unwrap().is_empty());
    store.fill(None);
    // Readers are served meanwhile.
    for chunk in [30, 60, 90] {
        read(&store, &bytes, chunk);
    }
    let is_early = start.elapsed() < Duration::from_secs(2);
    assert!(store.wait_complete(LONG), "{:?}", store.failure());
    let times = times.lock().unwrap();
    let first = |chunk: u64| {
        let of_chunk =
            |(_, range): &&(Instant, Range<u64>)| range.contains(&(chunk * CHUNK as u64));
        times.iter().skip(1).find(of_chunk).unwrap().0
    };
    let pause = Duration::from_millis(1990);
    assert!(first(110) - start >= pause);
    assert!(is_early, "readers waited for the pause");
    // Chunks that only the fill asks for come last.
    assert!(first(180) > first(110));
    assert!(first(180) - start >= 2 * pause);
    assert_eq!(store.stats().failed_requests, 0);
}

#[test]
fn a_complete_image_sends_nothing() {
    let bytes = image(3000, 88);
    let served = bytes.clone();
    let server = Server::start(move |request| Answer::object(request, &served, "\"v1\""));
    let dir = Dir::new();
    let store = open(&server.url("/i"), &options(&dir)).unwrap();
    store.fill(None);
    assert!(store.wait_complete(LONG));
    server.take_requests();
    let all = chunks(0..90);
    store.prefetch(std::slice::from_ref(&all));
    store.prefetch_list(&[all]);
    store.fill(None);
    assert!(store.wait_complete(LONG));
    assert_same(&store, &bytes);
    assert_eq!(store.stats().pending_bytes, 0);
    assert_eq!(server.take_requests().len(), 0);
}

#[test]
fn the_list_of_an_image_is_bounded_unless_it_is_read() {
    let bytes = image(9000, 89);
    let served = bytes.clone();
    let server = Server::start(move |request| Answer::object(request, &served, "\"v1\""));
    let dir = Dir::new();
    let store = open(&server.url("/i"), &options(&dir)).unwrap();
    let before = store.stats().fetched_bytes;
    store.prefetch_list(&[chunks(1..240)]);
    let third = bytes.len() as u64 / 3;
    let wait_for_bound = |bound: u64| {
        until("the list is fetched up to its bound", || {
            store.stats().fetched_bytes - before + (CHUNK as u64) > bound
        });
        std::thread::sleep(Duration::from_millis(50));
        assert!(store.stats().fetched_bytes - before <= bound + 3 * (2 << 20));
    };
    wait_for_bound(third);
    assert!(store.stats().fetched_bytes - before <= third);
    // Reads of what it named make room.
    for chunk in 1..31 {
        read(&store, &bytes, chunk);
    }
    read(&store, &bytes, 200);
    wait_for_bound(third + 30 * CHUNK as u64);
}

#[test]
fn a_list_of_a_long_file_takes_no_memory_of_its_length() {
    // T-S3, by what is queued: the file of 4 GiB is named by one range.
    let bytes = image(3000, 90);
    let served = bytes.clone();
    let server = Server::start(move |request| Answer::object(request, &served, "\"v1\""));
    let dir = Dir::new();
    let store = open(&server.url("/i"), &options(&dir)).unwrap();
    store.prefetch_list(&[0..4 << 30, 0..u64::MAX]);
    assert!(store.stats().pending_bytes <= bytes.len() as u64);
    // Many entries for few chunks are looked at once each.
    let many: Vec<Range<u64>> = (0..1_000_000u64).map(|n| n * 12..n * 12 + 12).collect();
    let start = Instant::now();
    store.prefetch_list(&many);
    assert!(start.elapsed() < Duration::from_secs(5));
}

#[test]
fn a_thread_that_never_waits_fails_and_requests_what_is_absent() {
    let bytes = image(3000, 92);
    let served = bytes.clone();
    let gate = Gate::default();
    let closed = gate.clone();
    let server = Server::start(move |request| {
        let mut answer = Answer::object(request, &served, "\"v1\"");
        if range_of(request).start == 20 * CHUNK as u64 {
            answer.gate = Some((0, closed.clone()));
        }
        answer
    });
    let dir = Dir::new();
    let store = open(&server.url("/i"), &options(&dir)).unwrap();
    let reader = Arc::clone(&store);
    let thread = std::thread::spawn(move || {
        RemoteStore::never_wait_in_this_thread();
        let mut buf = [0; 4096];
        let mut reads = || reader.read_exact_at(&mut buf, 20 * CHUNK as u64).is_ok();
        assert!(!reads(), "nothing was fetched yet");
        gate.open();
        until("the chunk is there", reads);
    });
    thread.join().unwrap();
    // Other threads wait.
    read(&store, &bytes, 21);
}

#[test]
fn a_fill_progresses_between_the_misses_of_a_slow_reader() {
    let bytes = image(8000, 91);
    let served = bytes.clone();
    let server = Server::start(move |request| Answer::object(request, &served, "\"v1\""));
    let dir = Dir::new();
    let store = open(&server.url("/i"), &options(&dir)).unwrap();
    server.take_requests();
    store.fill(Some(16 << 20));
    // A miss every 30 ms, each of a place that those before have not read on to.
    for chunk in (60..200).rev().step_by(3) {
        read(&store, &bytes, chunk);
        std::thread::sleep(Duration::from_millis(30));
    }
    let sent = server.take_requests();
    assert!(sent.iter().any(|r| range_of(r).end <= chunks(0..60).end));
}

/// Times of unlisted reads of 4 KiB every 200 ms over a link of 20 Mbit/s and 20 ms, beside a list or a fill.
fn read_times(beside: impl Fn(&RemoteStore)) -> Vec<Duration> {
    let bytes = image(16_000, 92);
    let served = bytes.clone();
    let link = Link::new(20.0);
    let server = Server::start(move |request| Answer {
        delay: Duration::from_millis(20),
        link: Some(link.clone()),
        ..Answer::object(request, &served, "\"v1\"")
    });
    let dir = Dir::new();
    let mut options = options(&dir);
    options.hedging = false;
    let store = open(&server.url("/i"), &options).unwrap();
    beside(&store);
    let mut times = Vec::new();
    for n in 0..25 {
        std::thread::sleep(Duration::from_millis(200));
        let start = Instant::now();
        read(&store, &bytes, 300 + n * 5);
        times.push(start.elapsed());
    }
    times.sort_unstable();
    times
}

#[test]
#[ignore = "a measurement, for a machine without other load"]
fn reads_beside_a_list_or_a_fill_take_a_round_trip_and_100_ms() {
    // T-S1 and T-S11, with a list of 38 MB.
    let alone = read_times(|_| ());
    let list = read_times(|store| store.prefetch(&[chunks(1..290)]));
    let fill = read_times(|store| store.fill(None));
    let last = |times: &[Duration]| times[times.len() - 1];
    println!("alone {alone:?}\nlist {list:?}\nfill {fill:?}");
    assert!(last(&list) <= last(&alone) * 3);
    for times in [list, fill] {
        assert!(last(&times) <= Duration::from_millis(20 + 100));
    }
}
