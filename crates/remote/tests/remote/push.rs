//! Uploads: the registry has what the specification says, a reader gets the same bytes, and faults cost little.

use crate::common::{
    CHUNK, Dir, WithTree, assert_same, image, open, options, read_error, verified_image,
};
use serde_json::json;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tuff_remote::{
    Error, Kind, LayerImage, LayerTree, Location, PushOptions, Pushed, RetryPolicy, push,
};
use tuff_store::{MemStore, ReadAt};
use tuff_testkit::Rng;
use tuff_testkit::http::{Answer, Request, Server};
use tuff_testkit::registry::{Registry, digest};
use tuff_verity::Root;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn layer(bytes: &[u8], blocks: usize, root: Option<Root>) -> LayerImage {
    LayerImage {
        store: Arc::new(MemStore::new(bytes.to_vec())),
        tree: root.map(|root| LayerTree {
            offset: blocks as u64 * 4096,
            root,
            block: 4096,
        }),
        start_metadata: None,
        is_image: true,
        devices: Vec::new(),
    }
}

pub(crate) fn push_options() -> PushOptions {
    PushOptions {
        retry: RetryPolicy {
            deadline: Duration::from_secs(20),
            first_pause: Duration::from_millis(1),
            longest_pause: Duration::from_millis(5),
        },
        ..PushOptions::default()
    }
}

fn pushed(server: &Server, layers: &[LayerImage]) -> Result<Pushed, Error> {
    let url = format!("oci://{}/team/app:v1", server.host());
    push(&Location::parse(&url)?, layers, &push_options(), &|_| true)
}

/// Registry behind a server.
pub(crate) fn start() -> (Arc<Registry>, Server) {
    let registry = Arc::new(Registry::default());
    let answering = Arc::clone(&registry);
    let server = Server::start(move |request| answering.answer(request));
    (registry, server)
}

/// Number of bytes in the bodies of the requests with a method.
fn sent(server: &Server, method: &str) -> usize {
    let requests = server.take_requests();
    let of_method = requests.iter().filter(|request| request.method == method);
    of_method.map(|request| request.body.len()).sum()
}

#[test]
fn a_pushed_image_is_read_back_by_its_tag() {
    let (bytes, root) = verified_image(2000, 60);
    let (registry, server) = start();
    let done = pushed(&server, &[layer(&bytes, 2000, Some(root))]).unwrap();
    let url = format!("oci://{}/team/app:v1", server.host());
    let dir = Dir::new();
    let store = open(&url, &options(&dir)).unwrap();
    let mut read = vec![0; bytes.len()];
    WithTree(&store).read_exact_at(&mut read, 0).unwrap();
    assert!(read == bytes);

    let index = registry.manifest("team/app", "v1").unwrap();
    assert_eq!(
        index["manifests"][0]["digest"],
        done.manifest.clone().unwrap()
    );
    assert_eq!(
        index["manifests"][0]["platform"]["os.features"],
        json!(["erofs"])
    );
    let manifest = registry
        .manifest("team/app", &done.manifest.unwrap())
        .unwrap();
    let stated = &manifest["layers"][0];
    assert_eq!(stated["mediaType"], "application/vnd.erofs");
    let notes = &stated["annotations"];
    assert_eq!(
        notes["org.erofs.dmverity.hash_offset"],
        (2000 * 4096).to_string()
    );
    assert_eq!(notes["org.erofs.dmverity.block_size"], "4096");
    assert_eq!(
        notes["org.erofs.dmverity.root_digest"],
        format!("sha256:{}", hex(&root))
    );
    // The image, then an index of 32 bytes and 48 for each chunk.
    let blob = registry
        .blob("team/app", stated["digest"].as_str().unwrap())
        .unwrap();
    assert!(blob.starts_with(&bytes));
    let tail = &blob[bytes.len()..];
    assert_eq!(tail.len(), 32 + 48 * bytes.len().div_ceil(CHUNK));
    let range = format!("{}:{}", bytes.len(), blob.len());
    assert_eq!(notes["org.erofs.chunk-index.range"], range);
    assert_eq!(notes["org.erofs.chunk-index.digest"], digest(tail));
    let config = manifest["config"]["digest"].as_str().unwrap();
    let config = registry.blob("team/app", config).unwrap();
    let config: serde_json::Value = serde_json::from_slice(&config).unwrap();
    assert_eq!(config["rootfs"]["diff_ids"], json!([stated["digest"]]));
    assert_eq!(config["os.features"], json!(["erofs"]));
}

#[test]
fn a_second_upload_sends_no_blob_and_has_the_same_digest() {
    let bytes = image(1000, 61);
    let (_, server) = start();
    let first = pushed(&server, &[layer(&bytes, 1000, None)]).unwrap();
    assert!(sent(&server, "PATCH") > bytes.len());
    let second = pushed(&server, &[layer(&bytes, 1000, None)]).unwrap();
    assert_eq!(sent(&server, "PATCH"), 0);
    assert_eq!(first.digest, second.digest);
    assert!(!first.layers[0].was_present && second.layers[0].was_present);
}

#[test]
fn a_broken_connection_continues_where_it_ended() {
    let bytes = image(4000, 62);
    let registry = Arc::new(Registry::default());
    let answering = Arc::clone(&registry);
    let breaks = AtomicU32::new(0);
    let server = Server::breaking(
        move |request| {
            let is_blob = request.method == "PATCH";
            let is_early = is_blob && breaks.fetch_add(1, Ordering::SeqCst) < 3;
            is_early.then_some(5 << 20)
        },
        move |request| answering.answer(request),
    );
    pushed(&server, &[layer(&bytes, 4000, None)]).unwrap();
    let requests = server.take_requests();
    let patches: Vec<&Request> = requests.iter().filter(|r| r.method == "PATCH").collect();
    let total: usize = patches.iter().map(|request| request.body.len()).sum();
    // Nothing that the registry had was sent again.
    let manifest = registry.manifest("team/app", "v1").unwrap();
    let manifest = manifest["manifests"][0]["digest"].as_str().unwrap();
    let manifest = registry.manifest("team/app", manifest).unwrap();
    let sizes = [&manifest["layers"][0], &manifest["config"]].map(|d| d["size"].as_u64().unwrap());
    assert_eq!(total as u64, sizes.iter().sum::<u64>());
    let ranges: Vec<_> = patches
        .iter()
        .filter_map(|r| r.headers.get("content-range"))
        .collect();
    assert!(ranges[0].starts_with("5242880-"), "{ranges:?}");
}

#[test]
fn an_upload_that_the_registry_forgot_begins_again() {
    let bytes = image(1000, 63);
    let registry = Arc::new(Registry::default());
    let answering = Arc::clone(&registry);
    let number = AtomicU32::new(0);
    let server = Server::start(move |request| {
        if request.method == "PUT" && number.fetch_add(1, Ordering::SeqCst) == 0 {
            answering.forget_uploads();
        }
        answering.answer(request)
    });
    pushed(&server, &[layer(&bytes, 1000, None)]).unwrap();
    assert!(registry.manifest("team/app", "v1").is_some());
}

#[test]
fn a_bound_on_requests_makes_parts() {
    let bytes = image(4000, 64);
    let registry = Arc::new(Registry::default());
    let largest = Arc::new(AtomicUsize::new(0));
    let (answering, seen) = (Arc::clone(&registry), Arc::clone(&largest));
    let server = Server::start(move |request| {
        if request.body.len() > 5 << 20 {
            return Answer::status(413);
        }
        seen.fetch_max(request.body.len(), Ordering::SeqCst);
        answering.answer(request)
    });
    pushed(&server, &[layer(&bytes, 4000, None)]).unwrap();
    assert!(largest.load(Ordering::SeqCst) > 1 << 20);
    let url = format!("oci://{}/team/app:v1", server.host());
    let store = open(&url, &options(&Dir::new())).unwrap();
    let mut read = vec![0; bytes.len()];
    store.read_exact_at(&mut read, 0).unwrap();
    assert!(read == bytes);
}

#[test]
fn faults_that_pass_do_not_stop_an_upload() {
    let bytes = image(3000, 65);
    let registry = Arc::new(Registry::default());
    let answering = Arc::clone(&registry);
    let rng = Mutex::new(Rng::new(4));
    let server = Server::start(move |request| {
        match rng.lock().unwrap().draw() % 4 {
            0 => Answer::status(503).with("Retry-After", 0),
            // The registry works, and the answer is lost.
            1 => {
                answering.answer(request);
                Answer::status(0)
            }
            _ => answering.answer(request),
        }
    });
    pushed(&server, &[layer(&bytes, 3000, None)]).unwrap();
    let index = registry.manifest("team/app", "v1").unwrap();
    let manifest = index["manifests"][0]["digest"].as_str().unwrap();
    let manifest = registry.manifest("team/app", manifest).unwrap();
    let blob = manifest["layers"][0]["digest"].as_str().unwrap();
    assert!(registry.blob("team/app", blob).unwrap().starts_with(&bytes));
}

#[test]
fn refusals_and_dead_servers_are_one_error_in_time() {
    let bytes = image(1000, 66);
    for (status, words) in [(403, "access denied"), (405, "405"), (404, "404")] {
        let server = Server::start(move |request| match request.method.as_str() {
            "HEAD" => Answer::status(404),
            _ => Answer::status(status),
        });
        let e = pushed(&server, &[layer(&bytes, 1000, None)]).unwrap_err();
        assert_eq!(e.kind(), Kind::Unavailable);
        assert!(e.what().contains(words), "{e}");
    }
    // A server that takes the upload and never answers.
    let registry = Arc::new(Registry::default());
    let server = Server::start(move |request| match request.method.as_str() {
        "PATCH" => Answer::status(0),
        _ => registry.answer(request),
    });
    let url = format!("oci://{}/team/app:v1", server.host());
    let mut options = push_options();
    options.retry.deadline = Duration::from_millis(300);
    let start = Instant::now();
    let layers = [layer(&bytes, 1000, None)];
    let e = push(&Location::parse(&url).unwrap(), &layers, &options, &|_| {
        true
    })
    .unwrap_err();
    assert!(e.what().contains("given up after 0.3 s"), "{e}");
    assert!(start.elapsed() < Duration::from_secs(10));
}

#[test]
fn an_upload_stops_when_it_is_told_to() {
    let bytes = image(1000, 67);
    let (_, server) = start();
    let url = format!("oci://{}/team/app:v1", server.host());
    let layers = [layer(&bytes, 1000, None)];
    let stop = |step: &tuff_remote::Step| step.stage != "hash";
    let e = push(
        &Location::parse(&url).unwrap(),
        &layers,
        &push_options(),
        &stop,
    )
    .unwrap_err();
    assert_eq!(e.what(), "stopped");
    assert!(server.take_requests().is_empty());
}

#[test]
fn tokens_for_uploads_are_fetched_and_renewed() {
    let bytes = image(3000, 68);
    let issued = Arc::new(AtomicU32::new(0));
    let number = Arc::clone(&issued);
    let tokens = Server::start(move |request| {
        let n = number.fetch_add(1, Ordering::SeqCst) + 1;
        let right = match request.path.contains("pull%2Cpush") {
            true => "push",
            false => "pull",
        };
        Answer {
            status: 200,
            body: format!(r#"{{"token":"{right}-{n}"}}"#).into_bytes(),
            ..Answer::default()
        }
    });
    let realm = tokens.url("/token");
    let registry = Arc::new(Registry::default());
    let answering = Arc::clone(&registry);
    let uses = AtomicU32::new(0);
    let server = Server::start(move |request| {
        let is_read = matches!(request.method.as_str(), "GET" | "HEAD");
        let right = if is_read { "pull" } else { "pull,push" };
        let token = request
            .headers
            .get("authorization")
            .cloned()
            .unwrap_or_default();
        let fits =
            token.starts_with("Bearer push-") || is_read && token.starts_with("Bearer pull-");
        // Every fifth request finds its token expired.
        let is_expired = uses.fetch_add(1, Ordering::SeqCst) % 5 == 4;
        match fits && !is_expired {
            true => answering.answer(request),
            false => Answer::status(401).with(
                "WWW-Authenticate",
                format!(
                    r#"Bearer realm="{realm}",service="r",scope="repository:team/app:{right}""#
                ),
            ),
        }
    });
    let done = pushed(&server, &[layer(&bytes, 3000, None)]).unwrap();
    assert!(registry.manifest("team/app", &done.digest).is_some());
    assert!(issued.load(Ordering::SeqCst) >= 2);
}

#[test]
fn an_image_that_changes_while_it_is_sent_is_refused() {
    let bytes = image(1000, 69);
    let registry = Arc::new(Registry::default());
    let answering = Arc::clone(&registry);
    let server = Server::start(move |request| {
        let mut request = request.clone();
        if request.method == "PATCH" {
            request.body[0] ^= 1;
        }
        answering.answer(&request)
    });
    let e = pushed(&server, &[layer(&bytes, 1000, None)]).unwrap_err();
    assert!(e.what().contains("the digest differs"), "{e}");
    assert!(registry.manifest("team/app", "v1").is_none());
}

#[test]
fn the_chunk_index_is_no_part_of_the_image_that_is_read() {
    let bytes = image(1000, 70);
    let (_, server) = start();
    pushed(&server, &[layer(&bytes, 1000, None)]).unwrap();
    let url = format!("oci://{}/team/app:v1", server.host());
    let store = open(&url, &options(&Dir::new())).unwrap();
    assert_same(&store, &bytes);
}

#[test]
fn an_image_without_a_tree_is_verified_by_its_chunk_index() {
    let bytes = image(2000, 71);
    let (registry, server) = start();
    let done = pushed(&server, &[layer(&bytes, 2000, None)]).unwrap();
    let url = format!("oci://{}/team/app:v1", server.host());
    let dir = Dir::new();
    let store = open(&url, &options(&dir)).unwrap();
    let digest = &done.layers[0].digest;
    registry.change_blob("team/app", digest, |blob| blob[9 * CHUNK + 5] ^= 1);
    let message = read_error(&store, 9 * CHUNK);
    assert!(
        message.contains("does not match the chunk index"),
        "{message}"
    );
    store
        .read_exact_at(&mut [0; 4096], 20 * CHUNK as u64)
        .unwrap();
    // An index that is not the one that the manifest names.
    registry.change_blob("team/app", digest, |blob| *blob.last_mut().unwrap() ^= 1);
    let e = open(&url, &options(&Dir::new())).err().unwrap();
    assert_eq!(e.kind(), Kind::Corrupt);
    assert!(e.what().contains("chunk index"), "{e}");
}

#[test]
fn the_reason_of_a_refused_manifest_is_shown_without_escapes() {
    let registry = Registry::default();
    let server = Server::start(move |request| {
        match request.method == "PUT" && request.path.contains("/manifests/") {
            true => Answer {
                body: br#"{"errors":[{"code":"MANIFEST_INVALID","message":"index \u001b[31m is not supported"}]}"#.to_vec(),
                ..Answer::status(400)
            },
            false => registry.answer(request),
        }
    });
    let e = pushed(&server, &[layer(&image(100, 90), 100, None)]).unwrap_err();
    assert_eq!(e.kind(), Kind::Unavailable);
    assert_eq!(
        e.what(),
        "the server answers 400 Bad Request: index \\u{1b}[31m is not supported"
    );
}

#[test]
fn an_upload_continues_only_at_a_safe_place() {
    for place in [
        "file:///tmp/x",
        "http://u:p@127.0.0.1/",
        "http://169.254.169.254/",
        "http://[",
    ] {
        let server = Server::start(move |request| match request.method.as_str() {
            "POST" => Answer::status(202).with("Location", place),
            _ => Answer::status(404),
        });
        let e = pushed(&server, &[layer(&image(100, 91), 100, None)]).unwrap_err();
        assert!(
            e.what()
                .starts_with("the registry continues the upload to "),
            "{e}"
        );
        assert!(!e.to_string().contains("u:p"), "{e}");
    }
}
