//! Objects of a web server: requests, identity, cache.

use crate::common::{CHUNK, Dir, assert_same, image, open, options, read_error};
use std::fs;
use std::sync::{Arc, Mutex};
use tuff_remote::Kind;
use tuff_store::ReadAt;
use tuff_testkit::http::{Answer, Request, Server};

fn serve(bytes: &[u8]) -> Server {
    let bytes = bytes.to_vec();
    Server::start(move |request| Answer::object(request, &bytes, "\"v1\""))
}

fn ranges(requests: &[Request], size: usize) -> Vec<std::ops::Range<u64>> {
    requests
        .iter()
        .map(|r| r.range(size as u64).unwrap())
        .collect()
}

#[test]
fn every_byte_equals_the_local_image() {
    for blocks in [1, 31, 32, 33, 1000, 3001] {
        let bytes = image(blocks, 1);
        let server = serve(&bytes);
        let dir = Dir::new();
        let store = open(&server.url("/a/image.erofs"), &options(&dir)).unwrap();
        assert_same(&store, &bytes);
        // The second one reads what the first one left.
        server.take_requests();
        let again = open(&server.url("/a/image.erofs"), &options(&dir)).unwrap();
        assert_same(&again, &bytes);
        assert_eq!(server.take_requests().len(), 1);
    }
}

#[test]
fn an_image_opens_with_two_requests() {
    let bytes = image(2000, 2);
    let server = serve(&bytes);
    let dir = Dir::new();
    let store = open(&server.url("/i"), &options(&dir)).unwrap();
    // Superblock and metadata are there without another request.
    store.read_exact_at(&mut [0; 4096], 0).unwrap();
    store.read_exact_at(&mut [0; 4096], 1990 * 4096).unwrap();
    let got = ranges(&server.take_requests(), bytes.len());
    // An eighth of the metadata, before it, may hold directories.
    let meta = ((1750 - 250 / 8) * 4096 / CHUNK * CHUNK) as u64;
    assert_eq!(got, [0..CHUNK as u64, meta..bytes.len() as u64]);
}

#[test]
fn what_follows_comes_in_one_request_and_only_once() {
    let bytes = image(4000, 3);
    let server = serve(&bytes);
    let dir = Dir::new();
    let store = open(&server.url("/i"), &options(&dir)).unwrap();
    server.take_requests();
    let start = 19 * CHUNK as u64;
    store.read_exact_at(&mut [0; 10], start).unwrap();
    let got = ranges(&server.take_requests(), bytes.len());
    // Its length follows the measured pace.
    assert_eq!((got.len(), got[0].start), (1, start));
    for at in got[0].clone().step_by(10_000) {
        store.read_exact_at(&mut [0; 10], at).unwrap();
    }
    assert_eq!(server.take_requests().len(), 0);
}

#[test]
fn one_chunk_that_many_threads_want_is_fetched_once() {
    let bytes = image(4000, 4);
    let server = serve(&bytes);
    let dir = Dir::new();
    let store = open(&server.url("/i"), &options(&dir)).unwrap();
    server.take_requests();
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| store.read_exact_at(&mut [0; 10], 9 * CHUNK as u64).unwrap());
        }
    });
    assert_eq!(server.take_requests().len(), 1);
}

#[test]
fn a_sequential_reader_is_read_ahead() {
    let bytes = image(10_000, 5);
    let server = serve(&bytes);
    let dir = Dir::new();
    let store = open(&server.url("/i"), &options(&dir)).unwrap();
    server.take_requests();
    for at in (0..8000 * 4096).step_by(CHUNK) {
        store.read_exact_at(&mut [0; 10], at as u64).unwrap();
    }
    let requests = server.take_requests();
    assert!(
        requests.len() < 8000 * 4096 / CHUNK / 4,
        "{}",
        requests.len()
    );
}

#[test]
fn a_replaced_object_is_an_error() {
    let version = Arc::new(Mutex::new((image(2000, 6), "\"v1\"")));
    let shared = Arc::clone(&version);
    let server = Server::start(move |request| {
        let (bytes, etag) = &*shared.lock().unwrap();
        Answer::object(request, bytes, etag)
    });
    let dir = Dir::new();
    let store = open(&server.url("/i"), &options(&dir)).unwrap();
    *version.lock().unwrap() = (image(2000, 7), "\"v2\"");
    let message = read_error(&store, 9 * CHUNK);
    assert!(
        message.contains("was replaced since it was opened"),
        "{message}"
    );
    assert!(message.starts_with(&server.url("/i")), "{message}");
    // Opened again, it is the new one, beside the old one in the cache.
    let store = open(&server.url("/i"), &options(&dir)).unwrap();
    assert_same(&store, &image(2000, 7));
}

#[test]
fn a_server_that_ignores_conditions_does_not_hide_a_replaced_object() {
    for (size, etag) in [(2000, "\"v2\""), (2100, "\"v1\"")] {
        let first = Mutex::new(true);
        let server = Server::start(move |request| {
            let mut request = request.clone();
            request.headers.remove("if-match");
            let is_first = std::mem::take(&mut *first.lock().unwrap());
            match is_first || request.range(u64::MAX).unwrap().start > 6 << 20 {
                true => Answer::object(&request, &image(2000, 6), "\"v1\""),
                false => Answer::object(&request, &image(size, 7), etag),
            }
        });
        let dir = Dir::new();
        let store = open(&server.url("/i"), &options(&dir)).unwrap();
        let message = read_error(&store, 9 * CHUNK);
        assert!(
            message.contains("was replaced since it was opened"),
            "{message}"
        );
    }
}

#[test]
fn a_server_must_name_versions_and_know_ranges() {
    let bytes = image(2000, 8);
    let open_error = |answer: fn(&Request, &[u8]) -> Answer| {
        let bytes = bytes.clone();
        let server = Server::start(move |request| answer(request, &bytes));
        open(&server.url("/i"), &options(&Dir::new()))
            .err()
            .unwrap()
    };
    let e = open_error(|request, bytes| Answer::object(request, bytes, ""));
    assert_eq!(e.kind(), Kind::Unsupported);
    assert!(e.what().contains("--verity"), "{e}");
    let e = open_error(|request, bytes| {
        let mut request = request.clone();
        request.headers.remove("range");
        Answer::object(&request, bytes, "\"v1\"")
    });
    assert_eq!(e.kind(), Kind::Unsupported);
    assert!(e.what().contains("does not support range requests"), "{e}");
    let e = open_error(|request, bytes| {
        Answer::object(request, bytes, "\"v1\"").with("Content-Encoding", "gzip")
    });
    assert_eq!(e.kind(), Kind::Unsupported);
}

#[test]
fn redirects_do_not_carry_the_password() {
    let bytes = image(2000, 9);
    let objects = serve(&bytes);
    let target = objects.url("/signed?X-Amz-Signature=s");
    let front = Server::start(move |_| Answer::status(307).with("Location", &target));
    let dir = Dir::new();
    let url = format!("http://user:secret@{}/i", front.host());
    let store = open(&url, &options(&dir)).unwrap();
    assert_same(&store, &bytes);
    let requested = front.take_requests();
    // Base64 of user:secret.
    assert_eq!(
        requested[0].headers["authorization"],
        "Basic dXNlcjpzZWNyZXQ="
    );
    let requests = objects.take_requests();
    assert!(
        requests
            .iter()
            .all(|r| !r.headers.contains_key("authorization"))
    );
    // Later requests go to the target at once.
    assert_eq!(requested.len(), 1);
    front.stop();
    objects.stop();
    for entry in fs::read_dir(&dir.0).unwrap() {
        let name = entry.unwrap().file_name();
        assert!(!name.to_string_lossy().contains("secret"));
    }
}

#[test]
fn an_expired_redirect_is_followed_anew() {
    let bytes = image(2000, 10);
    let number = Arc::new(Mutex::new(0));
    let valid = Arc::clone(&number);
    let objects =
        Server::start(
            move |request| match request.path == format!("/{}", valid.lock().unwrap()) {
                true => Answer::object(request, &bytes, "\"v1\""),
                false => Answer::status(403),
            },
        );
    let (signer, host) = (Arc::clone(&number), objects.host());
    let front = Server::start(move |_| {
        let place = format!("http://{host}/{}", signer.lock().unwrap());
        Answer::status(302).with("Location", place)
    });
    let dir = Dir::new();
    let store = open(&front.url("/i"), &options(&dir)).unwrap();
    for n in 1..4 {
        *number.lock().unwrap() = n;
        store
            .read_exact_at(&mut [0; 10], 8 * n * CHUNK as u64)
            .unwrap();
    }
}

#[test]
fn the_cache_is_bounded_and_readers_see_no_holes() {
    let bytes = image(4000, 11);
    let server = serve(&bytes);
    let dir = Dir::new();
    let mut options = options(&dir);
    options.cache_max = 4 << 20;
    let store = open(&server.url("/i"), &options).unwrap();
    let other = open(&server.url("/i"), &options).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| assert_same(&store, &bytes));
        scope.spawn(|| assert_same(&other, &bytes));
    });
    let blocks =
        |entry: fs::DirEntry| std::os::unix::fs::MetadataExt::blocks(&entry.metadata().unwrap());
    let size: u64 = fs::read_dir(&dir.0)
        .unwrap()
        .map(|e| blocks(e.unwrap()) * 512)
        .sum();
    // Two writers may each be a step beyond the bound.
    assert!(size <= (5 << 20) + 2 * (1 << 20), "{size}");
}

#[test]
fn parts_of_a_range_are_continued() {
    let bytes = image(1000, 12);
    for (has_size, part) in [(true, 50_000), (false, 50_000), (false, usize::MAX)] {
        let served = bytes.clone();
        let server = Server::start(move |request| {
            let mut answer = Answer::object(request, &served, "\"v1\"");
            let Some(range) = request.range(served.len() as u64) else {
                return answer;
            };
            answer.body.truncate(part);
            let last = range.start + answer.body.len() as u64 - 1;
            let size = match has_size {
                true => served.len().to_string(),
                false => "*".to_owned(),
            };
            let stated = format!("bytes {}-{last}/{size}", range.start);
            answer.headers.retain(|(name, _)| name != "Content-Range");
            answer.with("Content-Range", stated)
        });
        let store = open(&server.url("/i"), &options(&Dir::new())).unwrap();
        assert_same(&store, &bytes);
    }
}

#[test]
fn a_size_that_no_answer_states_is_an_error() {
    let server = Server::start(move |request| {
        let bytes = vec![1; 5000];
        let mut answer = Answer::object(request, &bytes, "\"v1\"");
        answer.headers.retain(|(name, _)| name != "Content-Range");
        match answer.status {
            206 => answer.with("Content-Range", "bytes 0-4999/*"),
            _ => Answer::status(500),
        }
    });
    let mut options = options(&Dir::new());
    options.retry.deadline = std::time::Duration::from_millis(200);
    let e = open(&server.url("/i"), &options).err().unwrap();
    assert!(e.what().contains("500"), "{e}");
}
