//! First reads of an image: what is asked for before it is open, and what verifies it.

use crate::common::{
    CHUNK, Dir, assert_same, image, open, options, read_error, verified_image, with_tree,
};
use crate::push::{layer, push_options};
use serde_json::Value;
use std::fs;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;
use tuff_remote::{Kind, Location, RemoteStore, push};
use tuff_store::ReadAt;
use tuff_testkit::http::{Answer, Request, Server};
use tuff_testkit::registry::{self, Registry};

/// Annotation with the place of the metadata.
const METADATA: &str = "vnd.tuff.metadata";

/// Blocks of the images: their hash trees are too large to be fetched at once.
pub(crate) const BLOCKS: usize = 6500;

/// Longest time for requests to arrive together.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// Registry with an image, whose layer has these annotations changed.
fn registry_with(bytes: &[u8], root: [u8; 32], change: impl Fn(&mut Value)) -> Arc<Registry> {
    let registry = Arc::new(Registry::default());
    let answering = Arc::clone(&registry);
    let server = Server::start(move |request| answering.answer(request));
    let location = Location::parse(&format!("oci://{}/team/app:v1", server.host())).unwrap();
    let layers = [layer(bytes, BLOCKS, Some(root))];
    push(&location, &layers, &push_options(), &|_| true).unwrap();
    let index = registry.manifest("team/app", "v1").unwrap();
    let digest = index["manifests"][0]["digest"].as_str().unwrap().to_owned();
    let mut manifest = registry.manifest("team/app", &digest).unwrap();
    change(&mut manifest["layers"][0]["annotations"]);
    let manifest = manifest.to_string().into_bytes();
    let media = "application/vnd.oci.image.manifest.v1+json";
    registry.add_manifest("team/app", "v1", media, &manifest);
    registry
}

fn open_tag(server: &Server, dir: &Dir) -> Arc<RemoteStore> {
    let url = format!("oci://{}/team/app:v1", server.host());
    open(&url, &options(dir)).unwrap()
}

fn ranges(requests: &[Request], size: usize) -> Vec<std::ops::Range<u64>> {
    let ranges = requests.iter().map(|request| request.range(size as u64));
    ranges.flatten().collect()
}

/// Bytes of all ranges.
fn total(ranges: &[std::ops::Range<u64>]) -> u64 {
    ranges.iter().map(|range| range.end - range.start).sum()
}

#[test]
fn an_image_opens_with_one_round_trip_after_its_manifest() {
    let (bytes, root) = verified_image(BLOCKS, 700);
    let registry = registry_with(&bytes, root, |_| ());
    // Answers to ranges wait until both requests are there: the metadata and the hash blocks are neighbours here.
    let arrived = Arc::new((Mutex::new(0), Condvar::new()));
    let waiting = Arc::clone(&arrived);
    let server = Server::start(move |request| {
        if request.headers.contains_key("range") {
            let (count, changed) = &*waiting;
            let mut count = count.lock().unwrap();
            *count += 1;
            changed.notify_all();
            let late = changed.wait_timeout_while(count, TIMEOUT, |count| *count < 2);
            assert!(
                !late.unwrap().1.timed_out(),
                "requests come one after another"
            );
        }
        registry.answer(request)
    });
    let dir = Dir::new();
    let store = open_tag(&server, &dir);
    let ranges = ranges(&server.take_requests(), bytes.len());
    assert_eq!(ranges.len(), 2, "{ranges:?}");
    // The first chunk, the metadata in the last eighth, and few hash blocks.
    let limit = CHUNK + bytes.len() / 7 + 2 * CHUNK;
    assert!(total(&ranges) < limit as u64, "{ranges:?}");
    assert_same(&store, &bytes);
}

/// Passes connections on to a server, and counts them. Returns the host to connect to.
pub(crate) fn relay(host: String, count: Arc<(Mutex<usize>, Condvar)>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let relay = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        while let Ok((client, _)) = listener.accept() {
            *count.0.lock().unwrap() += 1;
            count.1.notify_all();
            let server = TcpStream::connect(&host).unwrap();
            for (mut from, mut to) in [
                (client.try_clone().unwrap(), server.try_clone().unwrap()),
                (server, client),
            ] {
                std::thread::spawn(move || {
                    let _ = std::io::copy(&mut from, &mut to);
                    let _ = to.shutdown(Shutdown::Write);
                });
            }
        }
    });
    relay
}

#[test]
fn connections_are_opened_before_the_first_answer() {
    let (bytes, root) = verified_image(BLOCKS, 707);
    let registry = registry_with(&bytes, root, |_| ());
    let connections = Arc::<(Mutex<usize>, Condvar)>::default();
    let counted = Arc::clone(&connections);
    let server = Server::start(move |request| {
        // The first answer waits for the connections.
        let (count, changed) = &*counted;
        let count = count.lock().unwrap();
        let late = changed.wait_timeout_while(count, TIMEOUT, |count| *count < 3);
        assert!(!late.unwrap().1.timed_out(), "nothing connects early");
        registry.answer(request)
    });
    let host = relay(server.host(), Arc::clone(&connections));
    let dir = Dir::new();
    let url = format!("oci://{host}/team/app:v1");
    let mut options = options(&dir);
    options.offline = true;
    let store = open(&url, &options).unwrap();
    // Nothing was asked for to open them.
    let requests = server.take_requests();
    assert_eq!(requests.len(), 3, "{requests:?}");
    assert_same(&store, &bytes);
    // The second start opens none.
    drop(store);
    let before = *connections.0.lock().unwrap();
    drop(open(&url, &options).unwrap());
    assert_eq!(*connections.0.lock().unwrap(), before + 1);
}

/// Server of an object at `path`. Its first answer waits for three connections, and later ones until `together` requests are there.
/// Returns the host of a relay that counts the connections, too.
pub(crate) fn object_in_two_round_trips(
    path: &'static str,
    bytes: Vec<u8>,
    together: usize,
) -> (Server, String) {
    let connections = Arc::<(Mutex<usize>, Condvar)>::default();
    let counted = Arc::clone(&connections);
    let arrived = (Mutex::new(0), Condvar::new());
    let server = Server::start(move |request| {
        if request.path.split('?').next() != Some(path) {
            return Answer::status(404);
        }
        let mut number = arrived.0.lock().unwrap();
        *number += 1;
        let least = match *number {
            1 => 1,
            _ => 1 + together,
        };
        arrived.1.notify_all();
        let late = arrived
            .1
            .wait_timeout_while(number, TIMEOUT, |number| *number < least);
        assert!(
            !late.unwrap().1.timed_out(),
            "requests come one after another"
        );
        let count = counted.0.lock().unwrap();
        let late = counted.1.wait_timeout_while(count, TIMEOUT, |n| *n < 3);
        assert!(!late.unwrap().1.timed_out(), "nothing connects early");
        Answer::object(request, &bytes, "\"v1\"")
    });
    let host = relay(server.host(), connections);
    (server, host)
}

#[test]
fn an_object_of_a_web_server_opens_with_two_round_trips_and_one_handshake() {
    let (bytes, root) = verified_image(BLOCKS, 708);
    let (server, host) = object_in_two_round_trips("/i", bytes.clone(), 2);
    let dir = Dir::new();
    let mut options = options(&dir);
    options.root_hash = Some(root);
    let store = open(&format!("http://{host}/i"), &options).unwrap();
    let requests = server.take_requests();
    assert!(requests.len() <= 4, "{requests:?}");
    assert_same(&store, &bytes);
}

#[test]
fn wrong_places_of_a_manifest_cost_little_and_change_nothing() {
    let (bytes, root) = verified_image(BLOCKS, 701);
    let size = bytes.len() as u64;
    let costs = |place: Option<&str>| {
        let registry = registry_with(&bytes, root, |annotations| match place {
            Some(place) => annotations[METADATA] = place.into(),
            None => annotations
                .as_object_mut()
                .unwrap()
                .retain(|name, _| name != METADATA),
        });
        let server = Server::start(move |request| registry.answer(request));
        let dir = Dir::new();
        let store = open_tag(&server, &dir);
        let ranges = ranges(&server.take_requests(), bytes.len());
        assert_same(&store, &bytes);
        (ranges.len(), total(&ranges))
    };
    let (requests, fetched) = costs(None);
    for place in [
        "0:4096".to_owned(),
        "9223372036854775808:9223372036854775809".to_owned(),
        format!("0:{size}"),
        format!("{}:{}", size - 1, size + 1),
        format!("{}:{}", 2 * CHUNK, 3 * CHUNK),
        format!("{}:{}", CHUNK, 20 << 20),
        "5:4".to_owned(),
        "4096".to_owned(),
        "-1:9".to_owned(),
    ] {
        let (more_requests, more) = costs(Some(&place));
        assert!(more_requests <= requests + 1, "{place}: {more_requests}");
        assert!(more <= fetched + (4 << 20), "{place}: {more}");
    }
}

#[test]
fn hash_blocks_are_fetched_by_need_and_once() {
    let (bytes, root) = verified_image(BLOCKS, 702);
    let served = bytes.clone();
    let server = Server::start(move |request| Answer::object(request, &served, "\"v1\""));
    let dir = Dir::new();
    let mut options = options(&dir);
    options.root_hash = Some(root);
    let tree = (BLOCKS * 4096) as u64..bytes.len() as u64;
    let of_tree = |requests: &[Request]| {
        let ranges = ranges(requests, bytes.len());
        let clip = |r: &std::ops::Range<u64>| r.start.max(tree.start)..r.end.max(tree.start);
        total(&ranges.iter().map(clip).collect::<Vec<_>>())
    };
    let store = open(&server.url("/i"), &options).unwrap();
    let opening = of_tree(&server.take_requests());
    assert!(opening < (tree.end - tree.start) / 2, "{opening}");
    let mut buf = [0; 4096];
    let middle = (BLOCKS / 2 * 4096) as u64;
    store.read_exact_at(&mut buf, middle).unwrap();
    assert!(buf == bytes[middle as usize..middle as usize + 4096]);
    let more = of_tree(&server.take_requests());
    assert!(0 < more && more <= 64 << 10, "{more}");
    // Neighbours have the same hash blocks.
    store.read_exact_at(&mut buf, middle + (1 << 20)).unwrap();
    assert_eq!(of_tree(&server.take_requests()), 0);
    drop(store);
    // Another process finds them.
    let again = open(&server.url("/i"), &options).unwrap();
    again.read_exact_at(&mut buf, middle).unwrap();
    assert_eq!(of_tree(&server.take_requests()), 0);
    assert_same(&again, &bytes);
}

#[test]
fn damaged_hash_blocks_are_fetched_again() {
    let (bytes, root) = verified_image(BLOCKS, 703);
    // Leaf of the middle of the image.
    let leaf = bytes.len() - (BLOCKS / 128 / 2) * 4096;
    let wrong = Arc::new(AtomicUsize::new(1));
    let (served, left) = (bytes.clone(), Arc::clone(&wrong));
    let server = Server::start(move |request| {
        let mut answer = Answer::object(request, &served, "\"v1\"");
        let range = request.range(served.len() as u64).unwrap_or(0..0);
        let is_leaf = range.start <= leaf as u64 && (leaf as u64) < range.end;
        let take = |n: usize| n.checked_sub(1);
        if is_leaf
            && left
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, take)
                .is_ok()
        {
            answer.body[leaf - range.start as usize] ^= 1;
        }
        answer
    });
    let dir = Dir::new();
    let mut options = options(&dir);
    options.root_hash = Some(root);
    let store = open(&server.url("/i"), &options).unwrap();
    let middle = BLOCKS / 2 * 4096;
    let read = |store: &RemoteStore| {
        let mut buf = [0; 4096];
        store.read_exact_at(&mut buf, middle as u64).map(|()| buf)
    };
    // Wrong once, then right.
    assert!(read(&store).unwrap() == bytes[middle..middle + 4096]);
    drop(store);
    // Damaged in the cache, with a chunk that is there no more.
    for entry in fs::read_dir(&dir.0).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "image") {
            let mut cached = fs::read(&path).unwrap();
            cached[leaf & !4095..][..4096].fill(7);
            cached[middle & !(CHUNK - 1)..][..CHUNK].fill(0);
            fs::write(&path, cached).unwrap();
        }
    }
    let store = open(&server.url("/i"), &options).unwrap();
    assert!(read(&store).unwrap() == bytes[middle..middle + 4096]);
    drop(store);
    // Always wrong: an error that names the root hash, and no byte of the file.
    fs::remove_dir_all(&dir.0).unwrap();
    wrong.store(usize::MAX, Ordering::SeqCst);
    let store = open(&server.url("/i"), &options).unwrap();
    let message = read_error(&store, middle);
    assert!(message.contains("hash tree"), "{message}");
    assert!(message.contains("root hash"), "{message}");
}

#[test]
fn a_request_for_hash_blocks_that_fails_is_no_wrong_byte() {
    let (bytes, root) = verified_image(BLOCKS, 704);
    let is_gone = Arc::new(AtomicBool::new(false));
    let (served, gone) = (bytes.clone(), Arc::clone(&is_gone));
    let server = Server::start(move |request| match gone.load(Ordering::SeqCst) {
        true => Answer::status(404),
        false => Answer::object(request, &served, "\"v1\""),
    });
    let dir = Dir::new();
    let mut options = options(&dir);
    options.root_hash = Some(root);
    let store = open(&server.url("/i"), &options).unwrap();
    is_gone.store(true, Ordering::SeqCst);
    let e = store.read_exact_at(&mut [0; 4096], (BLOCKS / 2 * 4096) as u64);
    let message = e.unwrap_err().to_string();
    assert!(message.contains("removed since it was opened"), "{message}");
    is_gone.store(false, Ordering::SeqCst);
    assert_same(&store, &bytes);
}

#[test]
fn a_chunk_index_of_another_image_verifies_nothing() {
    let [mine, other] = [705, 706].map(|seed| image(300, seed));
    let registry = Arc::new(Registry::default());
    let answering = Arc::clone(&registry);
    let server = Server::start(move |request| answering.answer(request));
    let of = |name: &str| Location::parse(&format!("oci://{}/team/{name}:v1", server.host()));
    for (name, bytes) in [("mine", &mine), ("other", &other)] {
        let layers = [layer(bytes, 300, None)];
        push(&of(name).unwrap(), &layers, &push_options(), &|_| true).unwrap();
    }
    // The blob has the bytes of one image and the index of the other; the manifest is that of the blob.
    let manifest = |name: &str| {
        let name = format!("team/{name}");
        let index = registry.manifest(&name, "v1").unwrap();
        let digest = index["manifests"][0]["digest"].as_str().unwrap().to_owned();
        registry.manifest(&name, &digest).unwrap()
    };
    let (mut mixed, theirs) = (manifest("mine"), manifest("other"));
    let blob = |name: &str, manifest: &Value| {
        let digest = manifest["layers"][0]["digest"].as_str().unwrap().to_owned();
        registry.blob(&format!("team/{name}"), &digest).unwrap()
    };
    let mut bytes = blob("mine", &mixed);
    let index = blob("other", &theirs)[other.len()..].to_vec();
    bytes.truncate(mine.len());
    bytes.extend(index);
    mixed["layers"][0]["digest"] = registry::digest(&bytes).into();
    let note = "org.erofs.chunk-index.digest";
    mixed["layers"][0]["annotations"][note] = theirs["layers"][0]["annotations"][note].clone();
    registry.add_blob("team/mine", bytes);
    let media = "application/vnd.oci.image.manifest.v1+json";
    registry.add_manifest("team/mine", "v1", media, mixed.to_string().as_bytes());
    let dir = Dir::new();
    let url = format!("oci://{}/team/mine:v1", server.host());
    let message = match open(&url, &options(&dir)) {
        Ok(store) => read_error(&store, 2 * CHUNK),
        Err(e) => e.to_string(),
    };
    assert!(message.contains("chunk index"), "{message}");
    // With a root hash, only the tree verifies.
    let (with_tree, root) = with_tree(mine.clone());
    let served = with_tree.clone();
    let server = Server::start(move |request| Answer::object(request, &served, "\"v1\""));
    let mut options = options(&dir);
    options.root_hash = Some([1; 32]);
    let e = open(&server.url("/i"), &options).err().unwrap();
    assert_eq!(e.kind(), Kind::Corrupt);
    options.root_hash = Some(root);
    assert_same(&open(&server.url("/i"), &options).unwrap(), &with_tree);
}
