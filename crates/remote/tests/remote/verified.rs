//! Images with a root hash: bytes match it, or there is an error.

use crate::common::{CHUNK, Dir, WithTree, assert_same, open, options, read_error, verified_image};
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tuff_remote::Kind;
use tuff_store::ReadAt;
use tuff_testkit::http::{Answer, Request, Server};
use tuff_verity::Root;

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
        assert_same(&store, &bytes);
        let again = open(&server.url("/i"), &options).unwrap();
        server.take_requests();
        assert_same(&again, &bytes);
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
    assert_same(&store, &bytes);
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
    let message = read_error(&store, 12 * CHUNK);
    assert!(
        message.contains("does not match the root hash"),
        "{message}"
    );
    assert!(
        message.contains(&format!("at byte {}", wrong / 4096 * 4096)),
        "{message}"
    );
    // Other parts are read.
    let mut buf = [0; 4096];
    store.read_exact_at(&mut buf, 40 * CHUNK as u64).unwrap();
    assert!(buf == bytes[40 * CHUNK..40 * CHUNK + 4096]);
    // The cache has no byte of the 32 KiB that failed.
    let mut files = fs::read_dir(&dir.0).unwrap().map(|e| e.unwrap().path());
    let image = files
        .find(|p| p.extension().is_some_and(|e| e == "image"))
        .unwrap();
    let cached = fs::read(image).unwrap();
    assert!(cached[12 * CHUNK..][..CHUNK / 4].iter().all(|b| *b == 0));
}

#[test]
fn a_server_that_is_wrong_and_then_slow_gets_no_second_deadline() {
    let (bytes, root) = verified_image(3000, 37);
    let count = AtomicU64::new(0);
    let first = format!("bytes={}-", 12 * CHUNK);
    let server = Server::start(move |request| {
        let mut answer = Answer::object(request, &bytes, "\"v1\"");
        let range = request.headers.get("range");
        // Other requests, which open the image, may come in any number.
        if range.is_some_and(|range| range.starts_with(&first)) {
            match count.fetch_add(1, Ordering::SeqCst) {
                0 => answer.body[0] ^= 1,
                _ => answer.delay = Duration::from_secs(20),
            }
        }
        answer
    });
    let dir = Dir::new();
    let mut options = options(&dir);
    options.root_hash = Some(root);
    options.retry.deadline = Duration::from_secs(2);
    let store = open(&server.url("/i"), &options).unwrap();
    // Not the failure of a second request, which would have had its own deadline.
    let message = read_error(&store, 12 * CHUNK);
    assert!(
        message.contains("does not match the root hash"),
        "{message}"
    );
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
    let message = read_error(&store, bytes.len() - 4096);
    assert!(message.contains("the hash block at byte"), "{message}");
    is_wrong.store(false, Ordering::SeqCst);
    assert_same(&store, &bytes);
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
    assert_eq!(e.kind(), Kind::Corrupt);
    assert!(e.what().contains("no hash tree"), "{e}");
}

/// Image of `blocks` blocks with its tree, whose header states another number of data blocks.
fn with_stated_blocks(blocks: usize, stated: u64) -> (Vec<u8>, Root) {
    let (mut bytes, root) = verified_image(blocks, 38);
    let field = blocks * 4096 + 72;
    bytes[field..field + 8].copy_from_slice(&stated.to_le_bytes());
    (bytes, root)
}

/// Files of a cache with this extension.
fn files(dir: &Dir, extension: &str) -> Vec<PathBuf> {
    let files = fs::read_dir(&dir.0).unwrap().map(|e| e.unwrap().path());
    let is_kind = |path: &PathBuf| path.extension().is_some_and(|e| e == extension);
    files.filter(is_kind).collect()
}

#[test]
fn a_tree_that_does_not_cover_the_image_exactly_is_refused_and_nothing_is_stored() {
    // As deep a tree has the same root hash: 3 levels for 16,385 to 2,097,152 blocks, 2 for 129 and more, 1 for 2 and more.
    for (blocks, stated, expected) in [
        (100, 2, "digests cover 8192 bytes of 409600"),
        (100, 99, "digests cover 405504 bytes of 409600"),
        (
            100,
            101,
            "digests cover 413696 bytes, and the data ends at byte 409600",
        ),
        (3000, 129, "digests cover 528384 bytes of 12288000"),
        (
            3000,
            3001,
            "digests cover 12292096 bytes, and the data ends at",
        ),
        // The superblock itself is not covered.
        (3, 1, "root hash"),
        (3, 1 << 40, "digests cover"),
    ] {
        let (bytes, root) = with_stated_blocks(blocks, stated);
        let server = Server::start(move |request| Answer::object(request, &bytes, "\"v1\""));
        let dir = Dir::new();
        let mut options = options(&dir);
        options.root_hash = Some(root);
        let e = open(&server.url("/i"), &options).err().unwrap();
        assert_eq!(e.kind(), Kind::Corrupt, "{stated} of {blocks}: {e}");
        assert!(e.what().contains(expected), "{stated} of {blocks}: {e}");
        for image in files(&dir, "image") {
            assert!(fs::read(image).unwrap().iter().all(|b| *b == 0));
        }
    }
}

#[test]
fn a_tree_in_the_cache_that_covers_too_little_is_fetched_again() {
    let (bytes, root) = verified_image(3000, 38);
    let served = bytes.clone();
    let server = Server::start(move |request| Answer::object(request, &served, "\"v1\""));
    let dir = Dir::new();
    let mut options = options(&dir);
    options.root_hash = Some(root);
    assert_same(&open(&server.url("/i"), &options).unwrap(), &bytes);
    for tree in files(&dir, "tree") {
        let mut content = fs::read(&tree).unwrap();
        content[4096 + 72..4096 + 80].copy_from_slice(&200u64.to_le_bytes());
        fs::write(tree, content).unwrap();
    }
    assert_same(&open(&server.url("/i"), &options).unwrap(), &bytes);
}

#[test]
fn a_header_at_another_place_is_refused() {
    let (bytes, root) = verified_image(100, 38);
    // The superblock, which states the place, is covered. It claims 50 blocks, and the tree follows them.
    let mut moved = bytes[..50 * 4096].to_vec();
    moved[1024 + 36..1024 + 40].copy_from_slice(&50u32.to_le_bytes());
    moved.extend_from_slice(&bytes[100 * 4096..]);
    for stated in [50u64, 100] {
        let mut served = moved.clone();
        served[50 * 4096 + 72..50 * 4096 + 80].copy_from_slice(&stated.to_le_bytes());
        let server = Server::start(move |request| Answer::object(request, &served, "\"v1\""));
        let dir = Dir::new();
        let mut options = options(&dir);
        options.root_hash = Some(root);
        let e = open(&server.url("/i"), &options).err().unwrap();
        assert_eq!(e.kind(), Kind::Corrupt, "{stated}: {e}");
    }
}

#[test]
fn a_tree_of_another_image_is_refused() {
    let (bytes, root) = verified_image(100, 38);
    let (other, other_root) = verified_image(100, 39);
    let mut mixed = bytes[..100 * 4096].to_vec();
    mixed.extend_from_slice(&other[100 * 4096..]);
    for root in [root, other_root] {
        let served = mixed.clone();
        let server = Server::start(move |request| Answer::object(request, &served, "\"v1\""));
        let dir = Dir::new();
        let mut options = options(&dir);
        options.root_hash = Some(root);
        let e = open(&server.url("/i"), &options).err().unwrap();
        assert_eq!(e.kind(), Kind::Corrupt, "{e}");
    }
}

#[test]
fn nothing_outside_of_what_the_root_hash_determines_is_read() {
    let (bytes, root) = verified_image(100, 38);
    let tree_end = bytes.len();
    // The rest of the header's block, and what follows the tree.
    for place in [100 * 4096 + 600, tree_end + 5000] {
        let mut served = bytes.clone();
        served.resize(tree_end + 8192, 0xAA);
        served[place] = 0xBB;
        let is_padding = place < tree_end;
        let server = Server::start(move |request| Answer::object(request, &served, "\"v1\""));
        let dir = Dir::new();
        let mut options = options(&dir);
        options.root_hash = Some(root);
        options.retry.deadline = Duration::from_secs(2);
        let store = open(&server.url("/i"), &options).unwrap();
        // Readers of the image see the image alone.
        assert_eq!(store.size(), 100 * 4096);
        assert_eq!(store.read_at(&mut [0; 10], 100 * 4096).unwrap(), 0);
        let whole = WithTree(&store);
        assert_eq!(whole.size(), tree_end as u64);
        assert_eq!(whole.read_at(&mut [0; 10], tree_end as u64).unwrap(), 0);
        let mut read = vec![0; tree_end];
        let is_read = whole.read_exact_at(&mut read, 0).is_ok();
        assert_eq!(is_read, !is_padding, "byte {place}");
        assert!(is_padding || read == bytes);
        store.fill(None);
        assert_eq!(store.wait_complete(Duration::from_secs(20)), !is_padding);
        if !is_padding {
            let file = store.complete_file().unwrap();
            assert!(fs::read(file.path()).unwrap() == bytes);
        }
    }
}

#[test]
fn a_wrong_first_answer_is_requested_again_like_others() {
    let (bytes, root) = verified_image(300, 34);
    type Spoil = fn(&mut Answer);
    let spoil: [(&str, Spoil); 3] = [
        ("zeros", |answer| answer.body.fill(0)),
        ("bit", |answer| answer.body[2000] ^= 1),
        ("superblock", |answer| answer.body[1024 + 37] ^= 1),
    ];
    for (name, spoil) in spoil {
        for wrong in [1, 2, u64::MAX] {
            let served = bytes.clone();
            let count = AtomicU64::new(0);
            let server = Server::start(move |request| {
                let mut answer = Answer::object(request, &served, "\"v1\"");
                let is_first = request
                    .headers
                    .get("range")
                    .is_some_and(|r| r.starts_with("bytes=0-"));
                if is_first && count.fetch_add(1, Ordering::SeqCst) < wrong {
                    spoil(&mut answer);
                }
                answer
            });
            let dir = Dir::new();
            let mut options = options(&dir);
            options.root_hash = Some(root);
            let opened = open(&server.url("/i"), &options);
            match wrong {
                1 | 2 => assert_same(&opened.unwrap(), &bytes),
                _ => {
                    let e = opened.err().unwrap();
                    assert_eq!(e.kind(), Kind::Corrupt, "{name}: {e}");
                    let requests = server.take_requests();
                    let first = |r: &&Request| {
                        r.headers
                            .get("range")
                            .is_some_and(|r| r.starts_with("bytes=0-"))
                    };
                    assert_eq!(requests.iter().filter(first).count(), 3, "{name}");
                }
            }
        }
    }
}

#[test]
fn an_object_that_is_cut_short_at_first_is_opened_again() {
    let (bytes, root) = verified_image(300, 34);
    let served = bytes.clone();
    let count = AtomicU64::new(0);
    let server = Server::start(move |request| match count.fetch_add(1, Ordering::SeqCst) {
        0 => Answer::object(request, &served[..200 * 4096], "\"v0\""),
        _ => Answer::object(request, &served, "\"v1\""),
    });
    let dir = Dir::new();
    let mut options = options(&dir);
    options.root_hash = Some(root);
    assert_same(&open(&server.url("/i"), &options).unwrap(), &bytes);
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
        assert_same(&open(&server.url("/i"), &options).unwrap(), &bytes);
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
        assert_same(&open(&server.url("/i"), &options).unwrap(), &bytes);
    }
}
