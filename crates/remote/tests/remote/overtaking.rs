//! Reads beside a list or a fill, whose answers do not come: T-S1 and T-S11 without a clock.

use crate::common::{CHUNK, Dir, assert_same, image, open, options};
use std::fs;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tuff_remote::RemoteStore;
use tuff_store::ReadAt;
use tuff_testkit::http::{Answer, Gate, Server};

/// Time that no test waits for, unless it fails.
const LONG: Duration = Duration::from_secs(60);

/// Chunk that no list names, far from where a fill begins.
const UNLISTED: usize = 199;

fn chunks(range: Range<usize>) -> Range<u64> {
    (range.start * CHUNK) as u64..(range.end * CHUNK) as u64
}

/// Waits until there is a value.
fn until<T>(what: &str, mut get: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = get() {
            return value;
        }
        assert!(start.elapsed() < LONG, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn read(store: &RemoteStore, bytes: &[u8], chunk: usize) {
    let mut buf = [0; 4096];
    let at = chunk * CHUNK;
    store.read_exact_at(&mut buf, at as u64).unwrap();
    assert!(buf == bytes[at..at + 4096], "chunk {chunk}");
}

/// Reads a chunk in a thread of its own, calls `then` while that sleeps, and waits for its end.
fn read_beside(store: &RemoteStore, bytes: &[u8], chunk: usize, then: impl FnOnce()) {
    let (sender, receiver) = channel();
    std::thread::scope(|scope| {
        let reader = scope.spawn(move || {
            sender
                .send(fs::read_link("/proc/thread-self").unwrap())
                .unwrap();
            read(store, bytes, chunk);
        });
        let stat = std::path::Path::new("/proc")
            .join(receiver.recv().unwrap())
            .join("stat");
        // The state follows the name, which is in parentheses.
        until("the reader waits", || {
            let text = fs::read_to_string(&stat).ok()?;
            let state = text.rsplit_once(')')?.1.trim_start().chars().next()?;
            (state == 'S').then_some(())
        });
        assert!(!reader.is_finished());
        then();
        reader.join().unwrap();
    });
}

fn assert_reads_go_first(name: &str, beside: impl Fn(&RemoteStore)) {
    let bytes = image(8000, 93);
    let (gate, holds) = (Gate::default(), Arc::<AtomicBool>::default());
    let requested = Arc::<Mutex<Vec<Range<u64>>>>::default();
    let (served, closed, held, log) = (
        bytes.clone(),
        gate.clone(),
        Arc::clone(&holds),
        Arc::clone(&requested),
    );
    let server = Server::start(move |request| {
        let range = request.range(u64::MAX).unwrap();
        log.lock().unwrap().push(range.clone());
        let mut answer = Answer::object(request, &served, "\"v1\"");
        let is_unlisted = range.contains(&chunks(UNLISTED..UNLISTED + 1).start);
        if held.load(Ordering::SeqCst) && !is_unlisted {
            answer.gate = Some((0, closed.clone()));
        }
        answer
    });
    let dir = Dir::new();
    let mut options = options(&dir);
    options.hedging = false;
    let store = open(&server.url("/i"), &options).unwrap();
    holds.store(true, Ordering::SeqCst);
    requested.lock().unwrap().clear();
    beside(&store);
    let first = until("a part is in flight", || {
        requested.lock().unwrap().first().cloned()
    });
    // It does not wait for the parts: none of their answers has come.
    read(&store, &bytes, UNLISTED);
    let sent = requested.lock().unwrap().clone();
    let of_reader = |range: &&Range<u64>| range.start == chunks(UNLISTED..UNLISTED + 1).start;
    assert_eq!(sent.iter().filter(of_reader).count(), 1, "{name}: {sent:?}");
    let chunk = (first.start / CHUNK as u64) as usize;
    read_beside(&store, &bytes, chunk, || gate.open());
    let again = requested.lock().unwrap().clone();
    let of_part = |range: &&Range<u64>| range.contains(&first.start);
    assert_eq!(again.iter().filter(of_part).count(), 1, "{name}: {again:?}");
    // The reader that joined a part has asked for nothing.
    assert_eq!(store.stats().demand_misses, 1, "{name}");
    assert_same(&store, &bytes);
}

#[test]
fn a_reader_joins_what_is_in_flight_and_overtakes_the_rest_of_a_list() {
    // Every other chunk, so that no part is longer than one.
    let list: Vec<_> = (20..180).step_by(2).map(|n| chunks(n..n + 1)).collect();
    assert_reads_go_first("list", |store| store.prefetch_list(&list));
    assert_reads_go_first("profile", |store| store.prefetch(&list));
    let long = chunks(20..180);
    assert_reads_go_first("long", |store| {
        store.prefetch_list(std::slice::from_ref(&long))
    });
}

#[test]
fn a_reader_joins_what_is_in_flight_and_overtakes_the_rest_of_a_fill() {
    assert_reads_go_first("fill", |store| store.fill(None));
}
