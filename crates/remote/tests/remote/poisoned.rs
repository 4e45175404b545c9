//! Caches with wrong bytes: of another place, of a server that was wrong before, of an older version, and planted by others.

use crate::common::{CHUNK, Dir, assert_same, image, open, options};
use crate::registry::{LAYER, layer, manifest};
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tuff_remote::{Kind, Location, Options, WholeImage, open_images};
use tuff_store::ReadAt;
use tuff_testkit::http::{Answer, Request, Server};

const LONG: Duration = Duration::from_secs(30);

/// Answers for the image of any repository: `manifest` under every tag, and `blob` under every digest.
fn answer(request: &Request, manifest: &str, blob: &[u8]) -> Answer {
    match request.path.contains("/manifests/") {
        true => Answer {
            status: 200,
            body: manifest.as_bytes().to_vec(),
            ..Answer::default()
        },
        false => Answer::object(request, blob, ""),
    }
}

/// All bytes of the image at a URL, as `pull` writes them.
fn pull(url: &str, options: &Options) -> tuff_remote::Result<Vec<u8>> {
    let images = open_images(&Location::parse(url)?, options, false)?;
    let mut bytes = Vec::new();
    for image in WholeImage::all(images)? {
        for part in image.parts() {
            bytes.extend(part?);
        }
    }
    Ok(bytes)
}

/// Files of a directory with a suffix.
fn files(dir: &Dir, suffix: &str) -> Vec<PathBuf> {
    let all = fs::read_dir(&dir.0).unwrap().map(|e| e.unwrap().path());
    all.filter(|path| path.to_string_lossy().ends_with(suffix))
        .collect()
}

#[test]
fn wrong_bytes_of_one_repository_are_not_those_of_another() {
    let bytes = image(1000, 90);
    let manifest = manifest(&[layer(LAYER, &bytes, None)]);
    let (blob, mut wrong) = (bytes.clone(), bytes.clone());
    wrong[500_000..600_000].fill(1);
    let served = wrong.clone();
    let server = Server::start(move |request| {
        let is_wrong = request.path.starts_with("/v2/team/evil/");
        answer(request, &manifest, if is_wrong { &served } else { &blob })
    });
    let dir = Dir::new();
    let options = options(&dir);
    let url = |name: &str| format!("oci://{}/team/{name}:v1", server.host());
    assert_same(&open(&url("evil"), &options).unwrap(), &wrong);
    assert_same(&open(&url("good"), &options).unwrap(), &bytes);
    assert!(pull(&url("good"), &options).unwrap() == bytes);
    // Another registry, with the same name of the repository.
    let blob = bytes.clone();
    let text = format!("{{\"layers\":[{}]}}", layer(LAYER, &bytes, None));
    let other = Server::start(move |request| answer(request, &text, &blob));
    let evil = format!("oci://{}/team/evil:v1", other.host());
    assert_same(&open(&evil, &options).unwrap(), &bytes);
}

/// Registry whose blob is wrong while the flag is set.
fn unsteady(bytes: &[u8]) -> (Server, Arc<AtomicBool>) {
    let manifest = manifest(&[layer(LAYER, bytes, None)]);
    let (blob, mut wrong) = (bytes.to_vec(), bytes.to_vec());
    wrong[300_000] ^= 1;
    let is_wrong = Arc::new(AtomicBool::new(true));
    let flag = Arc::clone(&is_wrong);
    let server = Server::start(move |request| {
        let blob = match flag.load(Ordering::SeqCst) {
            true => &wrong,
            false => &blob,
        };
        answer(request, &manifest, blob)
    });
    (server, is_wrong)
}

#[test]
fn a_pull_of_wrong_bytes_fails_once_and_leaves_nothing() {
    let bytes = image(1000, 91);
    let (server, is_wrong) = unsteady(&bytes);
    let dir = Dir::new();
    let options = options(&dir);
    let url = format!("oci://{}/team/app:v1", server.host());
    let e = pull(&url, &options).unwrap_err();
    assert_eq!(e.kind(), Kind::Corrupt);
    assert!(e.what().contains("do not match the digest"), "{e}");
    assert!(e.what().contains("removed from the cache"), "{e}");
    is_wrong.store(false, Ordering::SeqCst);
    assert!(pull(&url, &options).unwrap() == bytes);
}

#[test]
fn a_complete_file_of_wrong_bytes_is_refused_and_leaves_nothing() {
    let bytes = image(1000, 92);
    let (server, is_wrong) = unsteady(&bytes);
    let dir = Dir::new();
    let store = open(
        &format!("oci://{}/team/app:v1", server.host()),
        &options(&dir),
    );
    let store = store.unwrap();
    store.fill(None);
    assert!(store.wait_complete(LONG));
    let e = store.complete_file().err().unwrap();
    assert_eq!(e.kind(), Kind::Corrupt);
    assert_eq!(store.stats().present_bytes, 0);
    is_wrong.store(false, Ordering::SeqCst);
    store.fill(None);
    assert!(store.wait_complete(LONG));
    let file = store.complete_file().unwrap();
    assert!(fs::read(file.path()).unwrap() == bytes);
}

#[test]
fn an_empty_blob_has_a_digest_like_any_other() {
    let text = layer(LAYER, b"x", None).replace("\"size\":1", "\"size\":0");
    let manifest = manifest(&[text]);
    let server = Server::start(move |request| answer(request, &manifest, b"x"));
    let dir = Dir::new();
    let e = pull(
        &format!("oci://{}/team/app:v1", server.host()),
        &options(&dir),
    );
    let e = e.unwrap_err();
    assert_eq!(e.kind(), Kind::Corrupt);
    assert!(e.what().contains("do not match the digest"), "{e}");
}

#[test]
fn urls_that_differ_in_their_query_or_user_have_their_own_bytes() {
    let contents: Vec<Vec<u8>> = (0..4).map(|seed| image(100, 93 + seed)).collect();
    let served = contents.clone();
    let server = Server::start(move |request| {
        let user = request.headers.contains_key("authorization");
        let number = match request.path.as_str() {
            "/i?v=1" => 1,
            "/i?v=2&sig=secret" => 2,
            _ if user => 3,
            _ => 0,
        };
        Answer::object(request, &served[number], "")
            .with("Last-Modified", "Thu, 26 Nov 2026 12:00:00 GMT")
    });
    let dir = Dir::new();
    let options = options(&dir);
    let host = server.host();
    let urls = [
        format!("http://{host}/i"),
        format!("http://{host}/i?v=1"),
        format!("http://{host}/i?v=2&sig=secret"),
        format!("http://user:p@{host}/i"),
    ];
    for _ in 0..2 {
        for (url, bytes) in urls.iter().zip(&contents) {
            assert_same(&open(url, &options).unwrap(), bytes);
        }
    }
    let names = fs::read_dir(&dir.0)
        .unwrap()
        .map(|e| e.unwrap().file_name());
    assert!(
        names
            .into_iter()
            .all(|name| !name.to_string_lossy().contains("secret"))
    );
}

#[test]
fn a_cache_that_others_can_change_is_refused() {
    let bytes = image(100, 97);
    let served = bytes.clone();
    let server = Server::start(move |request| Answer::object(request, &served, "\"v1\""));
    let dir = Dir::new();
    let options = options(&dir);
    let url = server.url("/i");
    let refused = |options: &Options, words: &str| {
        let e = open(&url, options).err().unwrap();
        assert_eq!(e.kind(), Kind::Unavailable);
        let text = e.to_string();
        let cache = options.cache.display().to_string();
        assert!(text.contains(words) && text.contains(&cache), "{text}");
    };
    fs::create_dir(&dir.0).unwrap();
    fs::set_permissions(&dir.0, Permissions::from_mode(0o777)).unwrap();
    refused(&options, "can be written by others");
    fs::set_permissions(&dir.0, Permissions::from_mode(0o755)).unwrap();
    let linked = Dir::new();
    symlink(&dir.0, &linked.0).unwrap();
    let mut through_link = options.clone();
    through_link.cache.clone_from(&linked.0);
    refused(&through_link, "is a symbolic link");
    fs::remove_file(&linked.0).unwrap();
    assert_same(&open(&url, &options).unwrap(), &bytes);
    // Links in place of the files of the image, and of those of all images.
    let victim = Dir::new();
    fs::write(&victim.0, "kept").unwrap();
    for suffix in [".image", ".state", ".hold", ".format"] {
        let [path] = &files(&dir, suffix)[..] else {
            panic!("{suffix}");
        };
        let saved = fs::read(path).unwrap();
        for is_hard in [false, true] {
            fs::remove_file(path).unwrap();
            match is_hard {
                false => symlink(&victim.0, path).unwrap(),
                true => fs::hard_link(&victim.0, path).unwrap(),
            }
            refused(&options, suffix);
        }
        fs::remove_file(path).unwrap();
        fs::write(path, saved).unwrap();
        assert_eq!(fs::read(&victim.0).unwrap(), b"kept", "{suffix}");
    }
    assert_same(&open(&url, &options).unwrap(), &bytes);
    fs::remove_file(&victim.0).unwrap();
}

#[test]
fn what_an_older_version_stored_is_not_read() {
    let bytes = image(100, 98);
    let server = {
        let bytes = bytes.clone();
        Server::start(move |request| Answer::object(request, &bytes, "\"v1\""))
    };
    let dir = Dir::new();
    let options = options(&dir);
    assert_same(&open(&server.url("/i"), &options).unwrap(), &bytes);
    // As version 0.2.0 left it: no number of the format, and another one in the state.
    fs::remove_file(&files(&dir, ".format")[0]).unwrap();
    let state = files(&dir, ".state").remove(0);
    let mut content = fs::read(&state).unwrap();
    content[..8].copy_from_slice(b"TUFFCHK1");
    fs::write(&state, content).unwrap();
    let old = dir.0.join(format!("{}.state", "0".repeat(64)));
    fs::copy(&state, &old).unwrap();
    let image = files(&dir, ".image").remove(0);
    fs::write(&image, vec![7; bytes.len()]).unwrap();
    server.take_requests();
    assert_same(&open(&server.url("/i"), &options).unwrap(), &bytes);
    assert!(!server.take_requests().is_empty());
    assert!(!old.exists());
    // Entries of this version stay.
    assert_same(&open(&server.url("/i"), &options).unwrap(), &bytes);
    assert_eq!(files(&dir, ".state").len(), 1);
    let mut buf = [0; CHUNK];
    let store = open(&server.url("/i"), &options).unwrap();
    server.take_requests();
    store.read_exact_at(&mut buf, 0).unwrap();
    assert!(server.take_requests().is_empty());
}
