//! Registries: tokens, manifests, layers, redirects.

use crate::common::{CHUNK, Dir, assert_same, image, open, options, read_error, verified_image};
use sha2::{Digest, Sha256};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use tuff_remote::{Kind, Location, open_images};
use tuff_testkit::http::{Answer, Request, Server};

pub(crate) const LAYER: &str = "application/vnd.erofs.layer.v1";
const TAR: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn digest(bytes: &[u8]) -> String {
    format!("sha256:{}", hex(&Sha256::digest(bytes)))
}

pub(crate) fn layer(media: &str, bytes: &[u8], root: Option<&[u8]>) -> String {
    let digest = digest(bytes);
    let annotations = root.map_or(String::new(), |root| {
        format!(
            r#","annotations":{{"org.erofs.dmverity.root_digest":"sha256:{}"}}"#,
            hex(root)
        )
    });
    let size = bytes.len();
    format!(r#"{{"mediaType":"{media}","digest":"{digest}","size":{size}{annotations}}}"#)
}

pub(crate) fn manifest(layers: &[String]) -> String {
    format!(r#"{{"schemaVersion":2,"layers":[{}]}}"#, layers.join(","))
}

/// Registry with one manifest under the tag `v1` and its digest, and one blob.
pub(crate) fn answer(request: &Request, manifest: &str, blob: &[u8]) -> Answer {
    let manifests = ["v1".to_owned(), digest(manifest.as_bytes())];
    let path = request
        .path
        .strip_prefix("/v2/team/app/")
        .unwrap_or_default();
    match path.split_once('/') {
        Some(("manifests", version)) if manifests.iter().any(|m| m == version) => Answer {
            status: 200,
            body: manifest.as_bytes().to_vec(),
            ..Answer::default()
        },
        Some(("blobs", version)) if version == digest(blob) => Answer::object(request, blob, ""),
        _ => Answer::status(404),
    }
}

#[test]
fn the_layer_of_an_image_is_read_by_tag_and_by_digest() {
    let bytes = image(2000, 40);
    let manifest = manifest(&[layer(TAR, b"tar", None), layer(LAYER, &bytes, None)]);
    let by_digest = format!("@{}", digest(manifest.as_bytes()));
    let blob = bytes.clone();
    let server = Server::start(move |request| answer(request, &manifest, &blob));
    let dir = Dir::new();
    for version in [":v1", &by_digest] {
        let url = format!("oci://{}/team/app{version}", server.host());
        let store = open(&url, &options(&dir)).unwrap();
        server.take_requests();
        assert_same(&store, &bytes);
    }
    // Both name the same blob, which is in the cache.
    assert_eq!(server.take_requests().len(), 0);
}

#[test]
fn the_annotation_of_a_layer_is_its_root_hash() {
    let (bytes, root) = verified_image(2000, 41);
    let manifest = manifest(&[layer("application/vnd.erofs", &bytes, Some(&root))]);
    let is_wrong = Arc::new(Mutex::new(false));
    let (blob, wrong) = (bytes.clone(), Arc::clone(&is_wrong));
    let server = Server::start(move |request| {
        let mut answer = answer(request, &manifest, &blob);
        if *wrong.lock().unwrap() {
            answer.body[100] ^= 1;
        }
        answer
    });
    let dir = Dir::new();
    let url = format!("oci://{}/team/app:v1", server.host());
    let store = open(&url, &options(&dir)).unwrap();
    *is_wrong.lock().unwrap() = true;
    let message = read_error(&store, 9 * CHUNK);
    assert!(
        message.contains("does not match the root hash"),
        "{message}"
    );
    *is_wrong.lock().unwrap() = false;
    assert_same(&store, &bytes);
}

#[test]
fn tokens_are_fetched_renewed_and_kept_from_storage() {
    let bytes = image(3000, 42);
    let manifest = manifest(&[layer(LAYER, &bytes, None)]);
    let blob = bytes.clone();
    let storage = Server::start(move |request| match request.headers.get("authorization") {
        Some(_) => Answer::status(400),
        None => Answer::object(request, &blob, ""),
    });
    // Each token is good for three requests.
    let left = Arc::new(AtomicU32::new(0));
    let issued = Arc::new(AtomicU32::new(0));
    let (granted, number) = (Arc::clone(&left), Arc::clone(&issued));
    let tokens = Server::start(move |request| {
        if !request.path.contains("service=reg")
            || !request
                .path
                .contains("scope=repository%3Ateam%2Fapp%3Apull")
        {
            return Answer::status(400);
        }
        granted.store(3, Ordering::SeqCst);
        let n = number.fetch_add(1, Ordering::SeqCst) + 1;
        let body = format!(r#"{{"token":"t{n}"}}"#).into_bytes();
        Answer {
            status: 200,
            body,
            ..Answer::default()
        }
    });
    let (realm, place) = (tokens.url("/token"), storage.url("/blob"));
    let number = Arc::clone(&issued);
    let server = Server::start(move |request| {
        let token = format!("Bearer t{}", number.load(Ordering::SeqCst));
        let is_valid = request.headers.get("authorization") == Some(&token)
            && left
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1))
                .is_ok();
        if !is_valid {
            let challenge =
                format!(r#"Bearer realm="{realm}",service="reg",scope="repository:team/app:pull""#);
            return Answer::status(401).with("WWW-Authenticate", challenge);
        }
        match request.path.contains("/blobs/") {
            true => Answer::status(307).with("Location", &place),
            false => answer(request, &manifest, b""),
        }
    });
    let dir = Dir::new();
    let url = format!("oci://{}/team/app:v1", server.host());
    let store = open(&url, &options(&dir)).unwrap();
    assert_same(&store, &bytes);
    assert!(issued.load(Ordering::SeqCst) >= 1);
}

#[test]
fn an_expired_token_is_renewed_in_the_middle() {
    let bytes = image(3000, 43);
    let manifest = manifest(&[layer(LAYER, &bytes, None)]);
    let issued = Arc::new(AtomicU32::new(0));
    let number = Arc::clone(&issued);
    let tokens = Server::start(move |_| {
        let n = number.fetch_add(1, Ordering::SeqCst) + 1;
        let body = format!(r#"{{"access_token":"t{n}"}}"#).into_bytes();
        Answer {
            status: 200,
            body,
            ..Answer::default()
        }
    });
    let realm = tokens.url("/token");
    let valid = Arc::new(Mutex::new(String::from("Bearer t1")));
    let (blob, accepted) = (bytes.clone(), Arc::clone(&valid));
    let server = Server::start(move |request| {
        match request.headers.get("authorization") == Some(&accepted.lock().unwrap()) {
            true => answer(request, &manifest, &blob),
            false => {
                Answer::status(401).with("WWW-Authenticate", format!("Bearer realm=\"{realm}\""))
            }
        }
    });
    let dir = Dir::new();
    let url = format!("oci://{}/team/app:v1", server.host());
    let store = open(&url, &options(&dir)).unwrap();
    *valid.lock().unwrap() = "Bearer t2".to_owned();
    assert_same(&store, &bytes);
    assert_eq!(issued.load(Ordering::SeqCst), 2);
    // A registry that accepts no token is an error, not a loop.
    *valid.lock().unwrap() = "Bearer none".to_owned();
    let e = open(&url, &options(&dir)).err().unwrap();
    assert_eq!(e.kind(), Kind::Unavailable);
    assert!(e.what().contains("access denied"), "{e}");
    assert!(!e.to_string().contains("t2"), "{e}");
}

#[test]
fn a_manifest_without_one_image_says_what_it_holds() {
    let images = [layer(LAYER, b"a", None), layer(LAYER, b"b", None)];
    let cases = [
        (
            manifest(&[layer(TAR, b"a", None), layer(TAR, b"b", None)]),
            "no EROFS image: application/vnd.oci.image.layer.v1.tar+gzip (2)",
        ),
        (manifest(&images), "several EROFS images"),
        (manifest(&[]), "no EROFS image: nothing"),
        (
            manifest(&[layer("application/vnd.erofs+zstd", b"a", None)]),
            "+zstd",
        ),
        ("{".to_owned(), "not JSON"),
        ("{}".to_owned(), "no EROFS image"),
    ];
    for (manifest, words) in cases {
        let server = Server::start(move |request| answer(request, &manifest, b""));
        let url = format!("oci://{}/team/app:v1", server.host());
        let e = open(&url, &options(&Dir::new())).err().unwrap();
        assert_eq!(e.kind(), Kind::Unsupported);
        assert!(e.what().contains(words), "{e}");
    }
}

#[test]
fn roles_without_a_meaning_are_refused() {
    let with_role = |media: &str, role: &str| {
        let annotations = format!(r#","annotations":{{"org.erofs.role":"{role}"}}}}"#);
        layer(media, b"a", None).replace('}', &annotations)
    };
    let image = || layer(LAYER, b"b", None);
    let cases = [
        (
            vec![image(), with_role(LAYER, "device")],
            "no image follows",
        ),
        (vec![with_role(LAYER, "device")], "no EROFS image"),
        (
            vec![with_role(TAR, "device"), image()],
            "compressed as a whole",
        ),
        (
            vec![with_role(LAYER, "overlay-data"), image()],
            "overlay-data",
        ),
    ];
    for (layers, words) in cases {
        let manifest = manifest(&layers);
        let server = Server::start(move |request| answer(request, &manifest, b""));
        let url = format!("oci://{}/team/app:v1", server.host());
        let location = Location::parse(&url).unwrap();
        let e = open_images(&location, &options(&Dir::new()), false)
            .err()
            .unwrap();
        assert_eq!(e.kind(), Kind::Unsupported);
        assert!(e.what().contains(words), "{e}");
    }
}

#[test]
fn a_manifest_that_does_not_match_its_digest_is_refused() {
    let bytes = image(100, 44);
    let right = manifest(&[layer(LAYER, &bytes, None)]);
    let requests = digest(right.as_bytes());
    let server = Server::start(move |_| Answer {
        status: 200,
        body: manifest(&[layer(LAYER, b"another", None)]).into_bytes(),
        ..Answer::default()
    });
    let mut options = options(&Dir::new());
    options.retry.deadline = std::time::Duration::from_millis(100);
    let url = format!("oci://{}/team/app@{requests}", server.host());
    let e = open(&url, &options).err().unwrap();
    assert!(e.what().contains("does not match its digest"), "{e}");
}
