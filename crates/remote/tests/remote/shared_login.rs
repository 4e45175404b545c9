//! Images that share a blob, with a login for each: T-S19.

use crate::common::{CHUNK, Dir, child, verified_image};
use crate::process::run;
use crate::registry::{LAYER, digest, layer, manifest};
use base64::Engine;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tuff_testkit::http::{Answer, Request, Server};

/// Number of blocks of the image before its hash tree.
const BLOCKS: usize = 4000;

/// Value of `Authorization` for the login of a repository.
fn basic(user: &str) -> String {
    let text = format!("{user}:password");
    let encoded = base64::engine::general_purpose::STANDARD.encode(text);
    format!("Basic {encoded}")
}

/// Registry of the repositories `team/a` and `team/b`, each with a manifest and a login of its own.
struct Shared {
    server: Server,
    bytes: Vec<u8>,
    /// True once the login of `team/a` is refused.
    has_expired: Arc<AtomicBool>,
    dir: Dir,
    digest: String,
}

impl Shared {
    /// Starts it. `team/b` has the blob only if `is_shared`.
    fn start(is_shared: bool) -> Self {
        let (bytes, root) = verified_image(BLOCKS, 320);
        let manifest = manifest(&[layer(LAYER, &bytes, Some(&root))]);
        let has_expired = Arc::<AtomicBool>::default();
        let (blob, expired) = (bytes.clone(), Arc::clone(&has_expired));
        let digest = digest(manifest.as_bytes());
        let server = Server::start(move |request| {
            let path = request.path.strip_prefix("/v2/team/").unwrap_or_default();
            let Some((name @ ("a" | "b"), rest)) = path.split_once('/') else {
                return Answer::status(404);
            };
            let is_refused = name == "a" && expired.load(Ordering::SeqCst);
            if is_refused || request.headers.get("authorization") != Some(&basic(name)) {
                return Answer::status(401).with("WWW-Authenticate", "Basic realm=\"registry\"");
            }
            match rest.starts_with("blobs/") && name == "b" && !is_shared {
                true => Answer::status(404),
                false => {
                    let same = Request {
                        path: format!("/v2/team/app/{rest}"),
                        ..request.clone()
                    };
                    crate::registry::answer(&same, &manifest, &blob)
                }
            }
        });
        let dir = Dir::new();
        fs::create_dir(&dir.0).unwrap();
        fs::write(dir.0.join("content"), &bytes[..BLOCKS * 4096]).unwrap();
        for login in ["a", "b"] {
            let host = server.host();
            let text = format!(
                r#"{{"auths":{{"{host}":{{"username":"{login}","password":"password"}}}}}}"#
            );
            fs::write(dir.0.join(login), text).unwrap();
        }
        Self {
            server,
            bytes,
            has_expired,
            dir,
            digest,
        }
    }

    /// Runs a process that reads the image of a repository with the login of one, and with the cache of all.
    fn run(&self, action: &str, name: &str, version: &str, login: &str) -> (bool, String) {
        let host = self.server.host();
        let [logins, cache, content] =
            [login, "cache", "content"].map(|name| self.dir.0.join(name));
        let url = format!("oci://{host}/team/{name}{version}");
        let (cache, content) = (cache.to_str().unwrap(), content.to_str().unwrap());
        let mut child = child(&[action, &url, cache, content]);
        run(child.env("REGISTRY_AUTH_FILE", logins))
    }
}

#[test]
fn missing_chunks_of_a_shared_blob_are_read_with_the_login_of_their_own_image() {
    let shared = Shared::start(true);
    let (is_done, text) = shared.run("read-half", "a", ":v1", "a");
    assert!(is_done, "{text}");
    shared.has_expired.store(true, Ordering::SeqCst);
    shared.server.take_requests();
    let (is_done, text) = shared.run("read", "b", ":v1", "b");
    assert!(is_done, "{text}");
    let requests = shared.server.take_requests();
    assert!(requests.iter().all(|r| r.path.starts_with("/v2/team/b/")));
    assert!(
        requests
            .iter()
            .all(|r| r.headers.get("authorization") != Some(&basic("a")))
    );
    // Blocks that the other image has are copied after they were verified.
    let ranges = requests.iter().filter(|r| r.path.contains("/blobs/"));
    let fetched: u64 = ranges
        .filter_map(|r| r.range(shared.bytes.len() as u64))
        .map(|range| range.end - range.start)
        .sum();
    let half = shared.bytes.len() as u64 / 2;
    assert!(
        (half - (4 * CHUNK as u64)..half + (8 * CHUNK as u64)).contains(&fetched),
        "{fetched} of {half}"
    );
    // The image with the expired login opens with what it has in its cache at most.
    let (is_done, _) = shared.run("read", "a", ":v1", "a");
    assert!(!is_done);
}

#[test]
fn a_login_gets_nothing_from_the_cache_that_only_another_image_has() {
    let shared = Shared::start(false);
    let (is_done, text) = shared.run("read", "a", ":v1", "a");
    assert!(is_done, "{text}");
    let digest = format!("@{}", shared.digest);
    // By name and by digest, where the registry answers and where it does not. `team/b` names the blob, which it does not have.
    let cases = [("a", ":v1"), ("a", &digest), ("b", ":v1"), ("b", &digest)];
    let assert_refused = |action: &str| {
        std::thread::scope(|scope| {
            for (name, version) in cases {
                let shared = &shared;
                scope.spawn(move || {
                    let (is_done, text) = shared.run(action, name, version, "b");
                    assert!(!is_done, "{action} {name}{version}: {text}");
                    assert!(!text.contains("panicked"), "{text}");
                });
            }
        });
    };
    assert_refused("read-half");
    // Its own login still opens it.
    let (is_done, text) = shared.run("start", "a", &digest, "a");
    assert!(is_done, "{text}");
    shared.server.stop();
    assert_refused("start");
}
