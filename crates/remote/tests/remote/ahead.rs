//! Prefetch, background fill, the complete file, and hedged requests: by their requests and bytes.

use crate::common::{CHUNK, Dir, assert_same, image, open, options, read_error, verified_image};
use std::fs;
use std::ops::Range;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tuff_remote::{Kind, RemoteStore};
use tuff_store::ReadAt;
use tuff_testkit::Rng;
use tuff_testkit::http::{Answer, Request, Server};

/// Time that no test waits for, unless it fails.
const LONG: Duration = Duration::from_secs(60);

fn serve(bytes: &[u8]) -> Server {
    let bytes = bytes.to_vec();
    Server::start(move |request| Answer::object(request, &bytes, "\"v1\""))
}

fn chunks(range: Range<u64>) -> Range<u64> {
    range.start * CHUNK as u64..range.end * CHUNK as u64
}

fn ranges(requests: &[Request]) -> Vec<Range<u64>> {
    let range = |request: &Request| request.range(u64::MAX).unwrap();
    requests.iter().map(range).collect()
}

/// Waits until `bytes` are present.
fn wait_for(store: &RemoteStore, bytes: u64) {
    while store.stats().present_bytes < bytes {
        assert!(!store.wait_complete(Duration::from_millis(5)));
    }
}

#[test]
fn a_profile_is_fetched_in_its_order() {
    let bytes = image(4000, 50);
    let server = serve(&bytes);
    let dir = Dir::new();
    let mut options = options(&dir);
    options.connections = 1;
    let store = open(&server.url("/i"), &options).unwrap();
    let present = store.stats().present_bytes;
    server.take_requests();
    // Chunks 40 to 42 adjoin in the image, though not in the profile. Chunk 0 is there already.
    let profile = [chunks(40..41), chunks(9..10), chunks(41..43), chunks(0..1)];
    let inside = CHUNK as u64 * 70 + 5..CHUNK as u64 * 70 + 6;
    store.prefetch(&[&profile[..], &[inside]].concat());
    wait_for(&store, present + 5 * CHUNK as u64);
    // Their length follows the measured pace.
    let sent = ranges(&server.take_requests());
    let (first, last) = (sent[0].start, sent[sent.len() - 1].end);
    assert_eq!((first, last), (chunks(40..41).start, chunks(70..71).end));
    assert_eq!(store.stats().demand_misses, 0);
    assert_eq!(store.stats().requests, sent.len() as u64);
    assert_eq!(store.stats().fetched_bytes, 5 * CHUNK as u64);
    // Ranges past the end are of no interest.
    store.prefetch(&[u64::MAX - 1..u64::MAX, 5..5]);
}

#[test]
fn a_profile_saves_the_misses_of_its_reads() {
    let bytes = image(8000, 51);
    let mut rng = Rng::new(1);
    let reads: Vec<usize> = (0..60).map(|_| rng.below(6900) * 4096).collect();
    let delay = Duration::from_millis(2);
    let served = bytes.clone();
    let server = Server::start(move |request| Answer {
        delay,
        ..Answer::object(request, &served, "\"v1\"")
    });
    let run = |has_profile: bool| {
        let dir = Dir::new();
        let store = open(&server.url("/i"), &options(&dir)).unwrap();
        if has_profile {
            let profile: Vec<Range<u64>> = reads
                .iter()
                .map(|at| *at as u64..*at as u64 + 4096)
                .collect();
            let before = store.stats().present_bytes;
            let mut expected: Vec<usize> = reads.iter().map(|at| at / CHUNK).collect();
            expected.sort_unstable();
            expected.dedup();
            expected.retain(|chunk| *chunk > 0);
            store.prefetch(&profile);
            wait_for(&store, before + (expected.len() * CHUNK) as u64);
        }
        let mut buf = [0; 4096];
        for at in &reads {
            store.read_exact_at(&mut buf, *at as u64).unwrap();
            assert!(buf == bytes[*at..at + 4096]);
        }
        store.stats().demand_misses
    };
    let (without, with) = (run(false), run(true));
    assert!(without >= 10, "{without}");
    assert!(with * 20 <= without, "{with} of {without}");
}

#[test]
fn a_fill_completes_the_image() {
    for (name, (bytes, root)) in [
        ("plain", (image(6000, 52), None)),
        ("verified", {
            let (bytes, root) = verified_image(6000, 53);
            (bytes, Some(root))
        }),
    ] {
        let server = serve(&bytes);
        let dir = Dir::new();
        let mut options = options(&dir);
        options.root_hash = root;
        let store = open(&server.url("/i"), &options).unwrap();
        server.take_requests();
        assert!(store.complete_file().is_err());
        store.fill(None);
        assert!(store.wait_complete(LONG), "{name}: {:?}", store.failure());
        let got = ranges(&server.take_requests());
        // Nothing is fetched twice.
        let sum: u64 = got.iter().map(|range| range.end - range.start).sum();
        assert!(sum <= bytes.len() as u64);
        let stats = store.stats();
        assert_eq!(stats.present_bytes, stats.size);
        let file = store.complete_file().unwrap();
        assert!(fs::read(file.path()).unwrap() == bytes);
        let mode = fs::metadata(file.path()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        server.stop();
        assert_same(&store, &bytes);
    }
}

#[test]
fn a_fill_goes_on_after_an_outage_and_while_programs_read() {
    let bytes = image(6000, 54);
    let served = bytes.clone();
    let count = AtomicU64::new(0);
    // An outage after the first requests.
    let server = Server::start(move |request| match count.fetch_add(1, Ordering::SeqCst) {
        4..60 => Answer::status(503).with("Retry-After", 0),
        _ => Answer::object(request, &served, "\"v1\""),
    });
    let dir = Dir::new();
    let mut options = options(&dir);
    options.retry.deadline = Duration::from_millis(300);
    let store = open(&server.url("/i"), &options).unwrap();
    store.fill(None);
    let mut buf = vec![0; 5000];
    let mut rng = Rng::new(2);
    for _ in 0..200 {
        let at = rng.below(bytes.len() - buf.len());
        if store.read_exact_at(&mut buf, at as u64).is_ok() {
            assert!(buf == bytes[at..at + buf.len()]);
        }
    }
    assert!(store.wait_complete(LONG), "{:?}", store.failure());
    assert!(store.stats().retries > 0);
    assert_same(&store, &bytes);
}

#[test]
fn a_rate_shortens_the_requests_of_a_fill() {
    let bytes = image(4000, 55);
    let server = serve(&bytes);
    let dir = Dir::new();
    let store = open(&server.url("/i"), &options(&dir)).unwrap();
    server.take_requests();
    let before = store.stats().present_bytes;
    // 1 MiB per second is four requests of 256 KiB.
    store.fill(Some(1 << 20));
    wait_for(&store, before + 3 * (256 << 10));
    for range in ranges(&server.take_requests()) {
        assert!(range.end - range.start <= 256 << 10, "{range:?}");
    }
    // Nobody waits for the rest.
    drop(store);
}

#[test]
fn a_fill_pauses_while_a_reader_waits() {
    let bytes = image(6000, 64);
    let is_open = Arc::new(AtomicBool::new(false));
    let (served, opened) = (bytes.clone(), Arc::clone(&is_open));
    let expected = 150 * CHUNK as u64;
    let server = Server::start(move |request| {
        let range = request.range(u64::MAX).unwrap();
        // The reader's request; those of the fill have not got so far.
        while range.contains(&expected) && !opened.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        Answer::object(request, &served, "\"v1\"")
    });
    let dir = Dir::new();
    let store = open(&server.url("/i"), &options(&dir)).unwrap();
    let before = store.stats().present_bytes;
    // At 8 MiB per second it sends four requests in a second.
    store.fill(Some(8 << 20));
    wait_for(&store, before + (2 << 20));
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut buf = [0; 4096];
            store.read_exact_at(&mut buf, expected).unwrap();
            buf
        });
        let is_asked =
            |requests: &[Request]| ranges(requests).iter().any(|r| r.contains(&expected));
        while !is_asked(&server.take_requests()) {
            std::thread::sleep(Duration::from_millis(1));
        }
        // Requests of the fill in flight come to their end.
        std::thread::sleep(Duration::from_millis(20));
        server.take_requests();
        std::thread::sleep(Duration::from_millis(800));
        assert_eq!(ranges(&server.take_requests()), []);
        is_open.store(true, Ordering::SeqCst);
        let buf = reader.join().unwrap();
        assert!(buf[..] == bytes[expected as usize..expected as usize + 4096]);
    });
    assert!(store.wait_complete(LONG), "{:?}", store.failure());
}

#[test]
fn a_cache_that_is_too_small_ends_the_fill_with_a_reason() {
    let bytes = image(4000, 56);
    let server = serve(&bytes);
    let dir = Dir::new();
    let mut options = options(&dir);
    options.cache_max = 4 << 20;
    let store = open(&server.url("/i"), &options).unwrap();
    server.take_requests();
    store.fill(None);
    assert!(!store.wait_complete(LONG));
    let e = store.failure().unwrap();
    assert_eq!(
        (e.kind(), e.place()),
        (Kind::Unavailable, &*server.url("/i"))
    );
    assert!(e.what().contains("too small for the whole image"), "{e}");
    assert_eq!(server.take_requests().len(), 0);
    assert_same(&store, &bytes);
}

#[test]
fn a_fill_evicts_no_image_in_use() {
    let (first, second) = (image(2000, 57), image(2000, 58));
    let (a, b) = (first.clone(), second.clone());
    let server = Server::start(move |request| {
        let bytes = if request.path == "/a" { &a } else { &b };
        Answer::object(request, bytes, "\"v1\"")
    });
    let dir = Dir::new();
    let mut options = options(&dir);
    // Room for one of them.
    options.cache_max = 12 << 20;
    let a = open(&server.url("/a"), &options).unwrap();
    a.fill(None);
    assert!(a.wait_complete(LONG), "{:?}", a.failure());
    let b = open(&server.url("/b"), &options).unwrap();
    b.fill(None);
    assert!(!b.wait_complete(LONG));
    assert!(b.failure().unwrap().what().contains("images in use"));
    assert!(a.wait_complete(Duration::ZERO));
    drop(a);
    // An image that is not in use makes room.
    b.fill(None);
    assert!(b.wait_complete(LONG), "{:?}", b.failure());
    assert_same(&b, &second);
}

#[test]
fn the_complete_file_stays_while_it_is_used() {
    let (first, second) = (image(2000, 59), image(2000, 60));
    let (a, b) = (first.clone(), second.clone());
    let server = Server::start(move |request| {
        let bytes = if request.path == "/a" { &a } else { &b };
        Answer::object(request, bytes, "\"v1\"")
    });
    let dir = Dir::new();
    let mut options = options(&dir);
    options.cache_max = 12 << 20;
    let a = open(&server.url("/a"), &options).unwrap();
    a.fill(None);
    assert!(a.wait_complete(LONG), "{:?}", a.failure());
    let file = a.complete_file().unwrap();
    drop(a);
    let b = open(&server.url("/b"), &options).unwrap();
    assert_same(&b, &second);
    assert!(fs::read(file.path()).unwrap() == first);
    let path = file.path().to_owned();
    drop(file);
    // An image that is not in use goes first.
    assert_same(&b, &second);
    assert!(!path.exists());
}

#[test]
fn damage_of_the_complete_file_is_repaired_or_reported() {
    let (bytes, root) = verified_image(2000, 61);
    let server = serve(&bytes);
    let dir = Dir::new();
    let mut options = options(&dir);
    options.root_hash = Some(root);
    options.retry.deadline = Duration::from_secs(2);
    let store = open(&server.url("/i"), &options).unwrap();
    store.fill(None);
    assert!(store.wait_complete(LONG));
    let path = store.complete_file().unwrap().path().to_owned();
    let spoil = || {
        let mut content = fs::read(&path).unwrap();
        content[5_000_000] ^= 1;
        fs::write(&path, content).unwrap();
    };
    spoil();
    let file = store.complete_file().unwrap();
    assert!(fs::read(file.path()).unwrap() == bytes);
    drop(file);
    spoil();
    server.stop();
    assert!(store.complete_file().is_err());
}

#[test]
fn a_late_answer_is_requested_again_and_rarely() {
    let bytes = image(20_000, 62);
    let served = bytes.clone();
    let count = AtomicU64::new(0);
    let server = Server::start(move |request| {
        let mut answer = Answer::object(request, &served, "\"v1\"");
        let late = count.fetch_add(1, Ordering::SeqCst);
        // Each fifth answer is late, more than may be requested again.
        if late > 24 && late.is_multiple_of(5) {
            answer.delay = Duration::from_millis(200);
        }
        answer
    });
    let dir = Dir::new();
    let store = open(&server.url("/i"), &options(&dir)).unwrap();
    server.take_requests();
    let mut buf = [0; 4096];
    // Every read misses, and none is sequential.
    for n in (0..66).rev() {
        let at = n * 8 * CHUNK;
        store.read_exact_at(&mut buf, at as u64).unwrap();
        assert!(buf == bytes[at..at + 4096]);
    }
    let stats = store.stats();
    assert!(stats.hedged_requests > 0, "{stats:?}");
    assert!(stats.hedged_requests * 20 <= stats.requests, "{stats:?}");
    let sent = server.take_requests().len() as u64;
    let expected = stats.requests + stats.hedged_requests + stats.retries;
    // A repetition is not sent if the first answer comes while it connects.
    assert!(sent <= expected, "{sent}: {stats:?}");
}

#[test]
fn a_prefetch_that_fails_leaves_reads_to_themselves() {
    let bytes = image(4000, 63);
    let served = bytes.clone();
    let server = Server::start(move |request| match request.range(u64::MAX) {
        // One place is always refused.
        Some(range) if range.contains(&(50 * CHUNK as u64)) => Answer::status(418),
        _ => Answer::object(request, &served, "\"v1\""),
    });
    let dir = Dir::new();
    let store = open(&server.url("/i"), &options(&dir)).unwrap();
    store.prefetch(&[chunks(50..51), chunks(20..21)]);
    let mut buf = [0; 4096];
    for chunk in [20, 30, 90] {
        store
            .read_exact_at(&mut buf, (chunk * CHUNK) as u64)
            .unwrap();
        assert!(buf == bytes[chunk * CHUNK..chunk * CHUNK + 4096]);
    }
    let message = read_error(&store, 50 * CHUNK);
    assert!(message.starts_with(&server.url("/i")), "{message}");
    assert!(
        message.contains("bytes ") && message.contains("418"),
        "{message}"
    );
}
