//! Numbers that servers state: none of them is allocated, and those that are too large are errors that name them.

use crate::common::{CHUNK, Dir, image, open, options};
use crate::registry::{LAYER, layer, manifest};
use tuff_remote::{Kind, Location, open_images};
use tuff_store::ReadAt;
use tuff_testkit::http::{Answer, Request, Server};

/// Size that no image has. Unit: bytes.
const HUGE: u64 = 1 << 50;

/// Size of a large image. Unit: bytes.
const LARGE: u64 = 8 << 40;

/// Answers for an image: a manifest, and a blob of `size` bytes that begins with `start` and has zeros then.
fn answer(request: &Request, manifest: &str, start: &[u8], size: u64) -> Answer {
    if request.path.contains("/manifests/") {
        return Answer {
            status: 200,
            body: manifest.as_bytes().to_vec(),
            ..Answer::default()
        };
    }
    let Some(range) = request.range(size) else {
        return Answer::status(416);
    };
    let mut body = vec![0; (range.end - range.start) as usize];
    for (at, byte) in (range.start..range.end).zip(&mut body) {
        *byte = *start.get(at as usize).unwrap_or(&0);
    }
    let stated = format!("bytes {}-{}/{size}", range.start, range.end - 1);
    let mut answer = Answer::status(206).with("Content-Range", stated);
    answer.body = body;
    answer.with("ETag", "\"v1\"")
}

#[test]
fn a_size_that_no_image_has_is_a_limit_that_names_it() {
    let bytes = image(10, 80);
    let text = layer(LAYER, &bytes, None).replace("\"size\":40960", &format!("\"size\":{HUGE}"));
    let manifest = manifest(&[text]);
    let server = Server::start(move |request| answer(request, &manifest, &bytes, HUGE));
    let dir = Dir::new();
    let urls = [
        format!("oci://{}/team/app:v1", server.host()),
        server.url("/i"),
    ];
    for url in urls {
        let e = open(&url, &options(&dir)).err().unwrap();
        assert_eq!(e.kind(), Kind::Limit, "{e}");
        assert!(e.what().contains("1125899906842624 bytes"), "{e}");
    }
}

#[test]
fn memory_follows_what_is_fetched_of_a_large_image() {
    let bytes = image(100, 81);
    let start = bytes.clone();
    let server = Server::start(move |request| answer(request, "", &start, LARGE));
    let dir = Dir::new();
    let peak = || {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find(|line| line.starts_with("VmSize:"));
        let kib = line.unwrap().split_whitespace().nth(1).unwrap();
        kib.parse::<u64>().unwrap() << 10
    };
    // Starts the threads of the runtime.
    drop(open(&server.url("/first"), &options(&Dir::new())).unwrap());
    let before = peak();
    let opened: Vec<_> = (0..8)
        .map(|n| open(&server.url(&format!("/{n}")), &options(&dir)).unwrap())
        .collect();
    let mut buf = vec![0; CHUNK];
    for store in &opened {
        assert_eq!(store.size(), LARGE);
        store.read_exact_at(&mut buf, LARGE - CHUNK as u64).unwrap();
        assert!(buf.iter().all(|byte| *byte == 0));
        store.read_exact_at(&mut buf, 0).unwrap();
        assert!(buf == bytes[..CHUNK]);
    }
    // A profile that names all of it.
    opened[0].prefetch(std::slice::from_ref(&(0..LARGE)));
    assert!(opened[0].stats().pending_bytes <= 17 << 30);
    // Other tests run beside this one. The tables of eight such images would take 8 GiB.
    let used = peak().saturating_sub(before);
    drop(opened);
    assert!(used < 1 << 30, "{used}");
}

#[test]
fn a_chunk_index_of_a_stated_length_is_not_read() {
    let bytes = image(10, 82);
    let digest = format!("sha256:{}", "a".repeat(64));
    let annotations = format!(
        r#","annotations":{{"org.erofs.chunk-index.range":"40960:{LARGE}","org.erofs.chunk-index.digest":"{digest}"}}}}"#
    );
    let text = layer(LAYER, &bytes, None)
        .replace("\"size\":40960", &format!("\"size\":{LARGE}"))
        .replace('}', &annotations);
    let manifest = manifest(&[text]);
    let server = Server::start(move |request| answer(request, &manifest, &bytes, LARGE));
    let url = format!("oci://{}/team/app:v1", server.host());
    let e = open(&url, &options(&Dir::new())).err().unwrap();
    assert_eq!(e.kind(), Kind::Limit, "{e}");
    let stated = (LARGE - 40960).to_string();
    assert!(
        e.what().contains(&stated) && e.what().contains("chunk index"),
        "{e}"
    );
}

#[test]
fn a_manifest_of_too_many_layers_or_values_is_a_limit() {
    let layers = |count: usize| vec![layer(LAYER, b"x", None); count];
    let nested = format!("{{\"layers\":[{}]}}", vec!["{\"\":0}"; 100_000].join(","));
    let cases = [
        (manifest(&layers(201)), "201 EROFS layers, and at most 200"),
        (manifest(&layers(25_000)), "values, more than"),
        (nested, "values, more than"),
    ];
    for (manifest, words) in cases {
        let server = Server::start(move |request| answer(request, &manifest, b"x", 1));
        let url = format!("oci://{}/team/app:v1", server.host());
        let location = Location::parse(&url).unwrap();
        let e = open_images(&location, &options(&Dir::new()), false);
        let e = e.err().unwrap();
        assert_eq!(e.kind(), Kind::Limit, "{e}");
        assert!(e.what().contains(words), "{e}");
    }
}
