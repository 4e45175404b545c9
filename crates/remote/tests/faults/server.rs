//! Faults of a server: right bytes after repetitions, or one clear error.

use crate::common::{CHUNK, Dir, assert_same, image, open, options, read_error};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use tuff_remote::{Kind, RetryPolicy};
use tuff_store::ReadAt;
use tuff_testkit::Rng;
use tuff_testkit::http::{Answer, Request, Server};

/// Fault that a repetition overcomes.
fn broken(request: &Request, right: Answer, fault: u64) -> Answer {
    match fault {
        0 => Answer::status(503).with("Retry-After", 0),
        1 => Answer::status(429).with("Retry-After", 0),
        2 => Answer::status(500),
        3 => Answer::status(0),
        4 => Answer {
            cut: Some(right.body.len() / 2),
            ..right
        },
        // Another range than was asked for.
        5 => {
            let mut request = request.clone();
            request
                .headers
                .insert("range".to_owned(), "bytes=4096-8191".to_owned());
            Answer::object(&request, &vec![9; 1 << 20], "\"v1\"")
        }
        // A range that is not the one it states.
        6 => {
            let mut right = right;
            right.body.truncate(right.body.len() / 2);
            right
        }
        _ => right,
    }
}

#[test]
fn faults_that_pass_do_not_change_a_byte() {
    let bytes = image(3000, 20);
    let rng = Mutex::new(Rng::new(1));
    let served = bytes.clone();
    let server = Server::start(move |request| {
        let right = Answer::object(request, &served, "\"v1\"");
        let fault = rng.lock().unwrap().draw() % 20;
        // Another size is another object, which is an error of its own.
        match fault == 5 {
            true => right,
            false => broken(request, right, fault),
        }
    });
    let dir = Dir::new();
    let store = open(&server.url("/i"), &options(&dir)).unwrap();
    assert_same(&store, &bytes);
}

#[test]
fn the_pause_that_a_server_asks_for_is_kept() {
    for status in [429, 503] {
        let bytes = image(1000, 21);
        let first = Mutex::new(None);
        let server = Server::start(move |request| {
            let mut first = first.lock().unwrap();
            let since = first.get_or_insert_with(Instant::now).elapsed();
            match since < Duration::from_millis(900) {
                true => Answer::status(status).with("Retry-After", 1),
                false => Answer::object(request, &bytes, "\"v1\""),
            }
        });
        let dir = Dir::new();
        open(&server.url("/i"), &options(&dir)).unwrap();
        // One refusal, head and metadata.
        assert_eq!(server.take_requests().len(), 3);
    }
}

#[test]
fn a_pause_beyond_the_deadline_is_an_error_at_once() {
    let server = Server::start(|_| Answer::status(503).with("Retry-After", 3600));
    let e = open(&server.url("/i"), &options(&Dir::new()))
        .err()
        .unwrap();
    assert_eq!(e.kind(), Kind::Unavailable);
    assert!(
        e.what().contains("503") && e.what().contains("given up after 20 s"),
        "{e}"
    );
    assert_eq!(server.take_requests().len(), 1);
}

#[test]
fn a_dead_server_is_an_error_within_the_deadline() {
    let bytes = image(3000, 22);
    let server = Server::start(move |request| Answer::object(request, &bytes, "\"v1\""));
    let dir = Dir::new();
    let mut options = options(&dir);
    options.retry.deadline = Duration::from_millis(300);
    let store = open(&server.url("/i"), &options).unwrap();
    server.stop();
    let message = std::thread::scope(|scope| {
        let read = |n: usize| read_error(&store, n * 8 * CHUNK);
        let readers: Vec<_> = (1..8).map(|n| scope.spawn(move || read(n))).collect();
        readers
            .into_iter()
            .map(|r| r.join().unwrap())
            .collect::<Vec<_>>()
    });
    for message in message {
        assert!(message.starts_with(&server.url("/i")), "{message}");
        assert!(message.contains("given up after 0.3 s"), "{message}");
    }
    // A cached chunk needs no server.
    store.read_exact_at(&mut [0; 4096], 0).unwrap();
}

#[test]
fn a_server_that_was_never_there_is_given_up_before_the_deadline() {
    let server = Server::start(|_| Answer::status(200));
    let url = server.url("/i");
    server.stop();
    let e = open(&url, &options(&Dir::new())).err().unwrap();
    assert!(e.what().starts_with("cannot connect"), "{e}");
    assert!(e.what().ends_with("given up after 5 s"), "{e}");
}

#[test]
fn a_server_that_never_answers_is_an_error_within_the_deadline() {
    let server = Server::start(|_| Answer {
        delay: Duration::from_secs(5),
        ..Answer::status(200)
    });
    let mut options = options(&Dir::new());
    options.retry = RetryPolicy {
        deadline: Duration::from_millis(200),
        ..options.retry
    };
    let e = open(&server.url("/i"), &options).err().unwrap();
    assert_eq!(e.what(), "no answer; given up after 0.2 s");
}

#[test]
fn refusals_are_final_and_clear() {
    for (status, words) in [
        (404, "not found"),
        (403, "access denied"),
        (401, "access denied"),
        (418, "418"),
    ] {
        let server = Server::start(move |_| Answer::status(status));
        let url = format!("http://user:secret@{}/i?token=secret", server.host());
        let e = open(&url, &options(&Dir::new())).err().unwrap();
        assert_eq!(e.kind(), Kind::Unavailable);
        assert!(e.what().contains(words), "{e}");
        assert!(!e.to_string().contains("secret"), "{e}");
        assert_eq!(server.take_requests().len(), 1);
    }
}

#[test]
fn another_range_of_another_size_is_a_replaced_object() {
    let bytes = image(3000, 23);
    let server = Server::start(move |request| {
        let right = Answer::object(request, &bytes, "\"v1\"");
        match request
            .range(u64::MAX)
            .is_some_and(|r| r.start == 9 * CHUNK as u64)
        {
            true => broken(request, right, 5),
            false => right,
        }
    });
    let store = open(&server.url("/i"), &options(&Dir::new())).unwrap();
    let message = read_error(&store, 9 * CHUNK);
    assert!(message.contains("another size"), "{message}");
}

#[test]
fn answers_that_break_the_protocol_end_soon() {
    let bytes = image(3000, 24);
    let faults: [fn(Answer) -> Answer; 3] = [
        |mut answer| {
            answer.headers.clear();
            answer.with("ETag", "\"v1\"")
        },
        |mut answer| {
            answer.body.push(0);
            answer
        },
        |mut answer| {
            answer.body.pop();
            answer
        },
    ];
    for fault in faults {
        let bytes = bytes.clone();
        let server = Server::start(move |request| fault(Answer::object(request, &bytes, "\"v1\"")));
        let start = Instant::now();
        let e = open(&server.url("/i"), &options(&Dir::new()))
            .err()
            .unwrap();
        assert_eq!(e.kind(), Kind::Unavailable);
        assert_eq!(server.take_requests().len(), 4, "{e}");
        assert!(start.elapsed() < Duration::from_secs(5));
    }
}
