//! Images with a root hash: bytes match it, or there is an error.

use crate::common::{CHUNK, Dir, assert_same, open, options, read_error, verified_image};
use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tuff_remote::Kind;
use tuff_store::ReadAt;
use tuff_testkit::http::{Answer, Server};

#[test]
fn verified_bytes_equal_the_local_image() {
    for blocks in [1, 2, 129, 3001] {
        let (bytes, root) = verified_image(blocks, 30);
        let served = bytes.clone();
        let server = Server::start(move |request| Answer::object(request, &served, ""));
        let dir = Dir::new();
        let mut options = options(&dir);
        options.root_hash = Some(root);
        let store = open(&server.url("/i"), &options).unwrap();
        // Superblock, and metadata with the tree.
        assert!(server.take_requests().len() <= 2);
        assert_same(&*store, &bytes);
        let again = open(&server.url("/i"), &options).unwrap();
        server.take_requests();
        assert_same(&*again, &bytes);
        assert_eq!(server.take_requests().len(), 0);
    }
}

#[test]
fn a_wrong_byte_is_fetched_again() {
    let (bytes, root) = verified_image(3000, 31);
    let served = bytes.clone();
    let count = Mutex::new(0);
    let server = Server::start(move |request| {
        let mut answer = Answer::object(request, &served, "\"v1\"");
        let mut count = count.lock().unwrap();
        *count += 1;
        // Odd answers after the first two are wrong somewhere.
        if *count > 2 && *count % 2 == 1 {
            let at = answer.body.len() / 3;
            answer.body[at] ^= 1;
        }
        answer
    });
    let dir = Dir::new();
    let mut options = options(&dir);
    // One request at a time, so that a repetition is the next one.
    (options.root_hash, options.connections) = (Some(root), 1);
    let store = open(&server.url("/i"), &options).unwrap();
    assert_same(&*store, &bytes);
}

#[test]
fn a_byte_that_stays_wrong_is_an_error_and_is_not_stored() {
    let (bytes, root) = verified_image(3000, 32);
    let wrong = 12 * CHUNK + 77;
    let mut served = bytes.clone();
    served[wrong] ^= 0x10;
    let server = Server::start(move |request| Answer::object(request, &served, "\"v1\""));
    let dir = Dir::new();
    let mut options = options(&dir);
    options.root_hash = Some(root);
    let store = open(&server.url("/i"), &options).unwrap();
    let said = read_error(&*store, 12 * CHUNK);
    assert!(said.contains("does not match the root hash"), "{said}");
    assert!(
        said.contains(&format!("at byte {}", wrong / 4096 * 4096)),
        "{said}"
    );
    // Other parts are read.
    let mut buf = [0; 4096];
    store.read_exact_at(&mut buf, 40 * CHUNK as u64).unwrap();
    assert!(buf == bytes[40 * CHUNK..40 * CHUNK + 4096]);
    // The cache has no byte of the part that failed.
    let mut files = fs::read_dir(&dir.0).unwrap().map(|e| e.unwrap().path());
    let image = files
        .find(|p| p.extension().is_some_and(|e| e == "image"))
        .unwrap();
    let cached = fs::read(image).unwrap();
    assert!(cached[8 * CHUNK..16 * CHUNK].iter().all(|b| *b == 0));
}

#[test]
fn a_server_that_is_wrong_and_then_slow_gets_no_second_deadline() {
    let (bytes, root) = verified_image(3000, 37);
    let count = AtomicU64::new(0);
    let server = Server::start(move |request| {
        let mut answer = Answer::object(request, &bytes, "\"v1\"");
        match count.fetch_add(1, Ordering::SeqCst) {
            0 | 1 => {}
            2 => answer.body[0] ^= 1,
            _ => answer.delay = Duration::from_secs(20),
        }
        answer
    });
    let dir = Dir::new();
    let mut options = options(&dir);
    options.root_hash = Some(root);
    options.retry.deadline = Duration::from_secs(2);
    let store = open(&server.url("/i"), &options).unwrap();
    // Not the failure of a second request, which would have had its own deadline.
    let said = read_error(&*store, 12 * CHUNK);
    assert!(said.contains("does not match the root hash"), "{said}");
}

#[test]
fn a_wrong_tree_or_another_root_hash_is_an_error() {
    let (bytes, root) = verified_image(3000, 33);
    let dir = Dir::new();
    let mut options = options(&dir);
    for (at, root) in [
        (bytes.len() - 100, root),
        (3000 * 4096 + 4096, root),
        (0, [1; 32]),
    ] {
        let mut served = bytes.clone();
        served[at] ^= 1;
        let server = Server::start(move |request| Answer::object(request, &served, "\"v1\""));
        options.root_hash = Some(root);
        let e = open(&server.url("/i"), &options).err().unwrap();
        assert_eq!(e.kind(), Kind::Corrupt);
        assert!(e.what().contains("root hash"), "{e}");
    }
}

#[test]
fn a_hash_tree_that_changes_after_opening_is_an_error() {
    let (bytes, root) = verified_image(3000, 36);
    let is_wrong = Arc::new(AtomicBool::new(false));
    let (served, wrong) = (bytes.clone(), Arc::clone(&is_wrong));
    let server = Server::start(move |request| {
        let mut answer = Answer::object(request, &served, "\"v1\"");
        if wrong.load(Ordering::SeqCst) {
            *answer.body.last_mut().unwrap() ^= 1;
        }
        answer
    });
    let dir = Dir::new();
    let mut options = options(&dir);
    options.root_hash = Some(root);
    let store = open(&server.url("/i"), &options).unwrap();
    is_wrong.store(true, Ordering::SeqCst);
    // The cache loses the chunks of the first requests.
    for entry in fs::read_dir(&dir.0).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "state") {
            fs::write(path, "").unwrap();
        }
    }
    let said = read_error(&*store, bytes.len() - 4096);
    assert!(said.contains("the hash tree at byte"), "{said}");
    is_wrong.store(false, Ordering::SeqCst);
    assert_same(&*store, &bytes);
}

#[test]
fn an_image_without_a_tree_is_refused() {
    let (mut bytes, root) = verified_image(300, 34);
    bytes.truncate(300 * 4096);
    let server = Server::start(move |request| Answer::object(request, &bytes, "\"v1\""));
    let dir = Dir::new();
    let mut options = options(&dir);
    options.root_hash = Some(root);
    let e = open(&server.url("/i"), &options).err().unwrap();
    assert_eq!(e.kind(), Kind::Unsupported);
    assert!(e.what().contains("no hash tree"), "{e}");
}

#[test]
fn damage_in_the_cache_is_fetched_again() {
    let (bytes, root) = verified_image(3000, 35);
    let served = bytes.clone();
    let server = Server::start(move |request| Answer::object(request, &served, "\"v1\""));
    let dir = Dir::new();
    let mut options = options(&dir);
    for root in [None, Some(root)] {
        options.root_hash = root;
        assert_same(&*open(&server.url("/i"), &options).unwrap(), &bytes);
        // As after a power failure: entries without their bytes, half a chunk, a tree of zeros.
        for entry in fs::read_dir(&dir.0).unwrap() {
            let path = entry.unwrap().path();
            let mut content = fs::read(&path).unwrap();
            match path.extension().unwrap().to_str().unwrap() {
                "image" => {
                    content[..CHUNK].fill(0);
                    content[10 * CHUNK + 500..11 * CHUNK].fill(0);
                }
                "tree" => content[5000..].fill(0),
                _ => {}
            }
            fs::write(&path, content).unwrap();
        }
        assert_same(&*open(&server.url("/i"), &options).unwrap(), &bytes);
    }
}
