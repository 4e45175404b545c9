//! Second starts of an image: what they request, and what they do where the server cannot be reached.

use crate::common::{CHUNK, Dir, child, image, options, verified_image};
use crate::process::run;
use crate::push::{layer, push_options};
use crate::session::{TokenRegistry, push_layers};
use std::fs;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tuff_remote::{
    Certificate, Error, Kind, Location, OpenImage, Options, PushOptions, open_images, profile,
    push, trusted,
};
use tuff_store::ReadAt;
use tuff_testkit::http::{Answer, Request, Server};
use tuff_testkit::openssl::{self, parsed, signer};
use tuff_testkit::registry::Registry;

/// Profile that `push_layers` uploads.
const PROFILE: &[u8] = b"tuff profile 1\n";

/// Options of a start, which may go on without the server.
fn starting(dir: &Dir) -> Options {
    let mut options = options(dir);
    options.offline = true;
    options
}

/// Location that was opened, its images, and the profile that comes with them.
type Started = (Location, Vec<OpenImage>, Option<Vec<u8>>);

/// Opens an image as a start does: it verifies the signature, opens the image, and looks for the profile.
fn start(
    url: &str,
    options: &Options,
    certificate: Option<&Certificate>,
) -> Result<Started, Error> {
    let mut location = Location::parse(url)?;
    if let Some(certificate) = certificate {
        (location, _) = trusted(&location, certificate, options)?;
    }
    let images = open_images(&location, options, false)?;
    let profile = profile(&location, options)?;
    Ok((location, images, profile))
}

fn read_all(images: &[OpenImage], expected: &[Vec<u8>]) {
    assert_eq!(images.len(), expected.len());
    for (image, expected) in images.iter().zip(expected) {
        let mut read = vec![0; image.store.size() as usize];
        image.store.read_exact_at(&mut read, 0).unwrap();
        assert!(read == expected[..read.len()]);
    }
}

fn started(url: &str, dir: &Dir, expected: &[Vec<u8>]) -> (Location, Option<Vec<u8>>) {
    let (location, images, profile) = start(url, &starting(dir), None).unwrap();
    read_all(&images, expected);
    (location, profile)
}

/// Directory with keys, or `None` without openssl.
fn keys() -> Option<Dir> {
    let dir = Dir::new();
    fs::create_dir(&dir.0).unwrap();
    openssl::keys(&dir.0)?;
    Some(dir)
}

/// Files of a cache with a suffix.
fn files(dir: &Dir, suffix: &str) -> Vec<std::path::PathBuf> {
    let entries = fs::read_dir(&dir.0).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    paths
        .filter(|path| path.to_str().unwrap().ends_with(suffix))
        .collect()
}

/// Server whose answers are a status instead, once one is set. 1 is silence.
struct Failing {
    server: Server,
    status: Arc<AtomicU16>,
}

impl Failing {
    fn start(answer: impl Fn(&Request) -> Answer + Send + Sync + 'static) -> Self {
        let status = Arc::<AtomicU16>::default();
        let set = Arc::clone(&status);
        let server = Server::start(move |request| match set.load(Ordering::SeqCst) {
            0 => answer(request),
            1 => Answer {
                delay: Duration::from_secs(60),
                ..Answer::default()
            },
            status => Answer::status(status),
        });
        Self { server, status }
    }

    fn fail(&self, status: u16) {
        self.status.store(status, Ordering::SeqCst);
        self.server.take_requests();
    }
}

fn registry() -> (Arc<Registry>, Failing, Vec<Vec<u8>>) {
    let registry = Arc::new(Registry::with_referrers(true));
    let expected = push_layers(&registry, None);
    let answering = Arc::clone(&registry);
    let server = Failing::start(move |request| answering.answer(request));
    (registry, server, expected)
}

/// Web server with an object under `/i`.
fn web_server(bytes: &[u8], profile: Option<&'static [u8]>) -> Failing {
    let bytes = bytes.to_vec();
    Failing::start(
        move |request| match (request.path.split('?').next(), profile) {
            (Some("/i"), _) => Answer::object(request, &bytes, "\"v1\""),
            (Some("/i.profile"), Some(profile)) => Answer::object(request, profile, "\"p\""),
            _ => Answer::status(404),
        },
    )
}

#[test]
fn a_second_start_asks_at_most_whether_the_tag_has_moved() {
    for has_referrers in [true, false] {
        let registry = Arc::new(Registry::with_referrers(has_referrers));
        let expected = push_layers(&registry, None);
        let index = registry.manifest("team/app", "v1").unwrap();
        let digest = index["manifests"][0]["digest"].as_str().unwrap().to_owned();
        let server = Server::start(move |request| registry.answer(request));
        let dir = Dir::new();
        let tag = format!("oci://{}/team/app:v1", server.host());
        let by_digest = format!("oci://{}/team/app@{digest}", server.host());
        let (_, profile) = started(&tag, &dir, &expected);
        assert_eq!(profile.as_deref(), Some(PROFILE));
        server.take_requests();
        for (url, requests) in [(&tag, 1), (&by_digest, 0)] {
            let (location, profile) = started(url, &dir, &expected);
            assert_eq!(profile.as_deref(), Some(PROFILE));
            assert_eq!(server.take_requests().len(), requests, "{url}");
            assert!(location.warnings().is_empty());
        }
    }
}

#[test]
fn a_second_start_of_a_signed_image_asks_no_more() {
    let Some(keys) = keys() else {
        return;
    };
    let registry = Arc::new(Registry::with_referrers(true));
    let expected = push_layers(&registry, Some(&keys));
    let server = Server::start(move |request| registry.answer(request));
    let (dir, url) = (Dir::new(), format!("oci://{}/team/app:v1", server.host()));
    let certificate = parsed(&keys.0, "rsa");
    for requests in [None, Some(1)] {
        let (_, images, _) = start(&url, &starting(&dir), Some(&certificate)).unwrap();
        read_all(&images, &expected);
        let count = server.take_requests().len();
        assert!(requests.is_none_or(|requests| requests == count), "{count}");
    }
    // The signatures in the cache are not enough, so the registry is asked.
    let e = start(&url, &starting(&dir), Some(&parsed(&keys.0, "other"))).err();
    assert_eq!(e.unwrap().kind(), Kind::Untrusted);
    assert!(server.take_requests().len() > 1);
    server.stop();
    let (location, images, _) = start(&url, &starting(&dir), Some(&certificate)).unwrap();
    read_all(&images, &expected);
    assert_eq!(location.warnings().len(), 1);
    let e = start(&url, &starting(&dir), Some(&parsed(&keys.0, "other"))).err();
    let e = e.unwrap();
    assert!(e.what().contains("no signature by the certificate"), "{e}");
}

#[test]
fn a_second_start_of_a_url_asks_whether_it_has_changed() {
    for profile in [None, Some(PROFILE)] {
        let bytes = image(700, 310);
        let server = web_server(&bytes, profile);
        let (dir, url) = (Dir::new(), server.server.url("/i?v=1"));
        for requests in [None, Some(1)] {
            let (_, found) = started(&url, &dir, std::slice::from_ref(&bytes));
            assert_eq!(found.as_deref(), profile);
            let count = server.server.take_requests().len();
            assert!(requests.is_none_or(|requests| requests == count), "{count}");
        }
    }
}

#[test]
fn a_start_goes_on_with_what_it_has_where_the_server_is_out_of_reach() {
    let bytes = vec![image(700, 311)];
    for status in [0, 1, 500, 501, 503] {
        let (_, server, layers) = registry();
        let web = web_server(&bytes[0], None);
        let tag = format!("oci://{}/team/app:v1", server.server.host());
        let url = web.server.url("/i");
        for (server, url, expected, name) in [
            (&server, &tag, &layers, "opened sha256:"),
            (&web, &url, &bytes, "opened \\\"v1\\\""),
        ] {
            let dir = Dir::new();
            started(url, &dir, expected);
            match status {
                0 => server.server.stop(),
                status => server.fail(status),
            }
            let (location, _) = started(url, &dir, expected);
            let [warning] = &location.warnings()[..] else {
                panic!("{:?}", location.warnings());
            };
            for word in [name, "cannot be reached", "last seen ", " GMT"] {
                assert!(warning.contains(word), "{status}: {warning}");
            }
            assert_eq!(warning.lines().count(), 1);
            // Without the option, it is an error as before.
            let mut strict = options(&dir);
            strict.retry.deadline = Duration::from_millis(100);
            assert!(start(url, &strict, None).is_err());
        }
    }
}

#[test]
fn a_refusal_is_no_outage() {
    let bytes = vec![image(700, 312)];
    for status in [401, 403, 404] {
        let (_, server, layers) = registry();
        let web = web_server(&bytes[0], None);
        let tag = format!("oci://{}/team/app:v1", server.server.host());
        let url = web.server.url("/i");
        for (server, url, expected) in [(&server, &tag, &layers), (&web, &url, &bytes)] {
            let dir = Dir::new();
            started(url, &dir, expected);
            server.fail(status);
            let e = start(url, &starting(&dir), None).err().unwrap();
            assert_eq!(e.kind(), Kind::Unavailable, "{e}");
        }
    }
}

#[test]
fn damaged_documents_are_absent() {
    let (_, server, expected) = registry();
    let url = format!("oci://{}/team/app:v1", server.server.host());
    let dir = Dir::new();
    started(&url, &dir, &expected);
    let damage = || {
        for path in files(&dir, ".doc") {
            let mut bytes = fs::read(&path).unwrap();
            *bytes.last_mut().unwrap() ^= 1;
            fs::write(&path, bytes).unwrap();
        }
    };
    damage();
    let (_, profile) = started(&url, &dir, &expected);
    assert_eq!(profile.as_deref(), Some(PROFILE));
    server.fail(503);
    started(&url, &dir, &expected);
    damage();
    let mut options = starting(&dir);
    options.retry.deadline = Duration::from_millis(100);
    assert!(start(&url, &options, None).is_err());
}

#[test]
fn what_was_not_opened_is_not_what_is_opened_without_the_server() {
    let Some(keys) = keys() else {
        return;
    };
    let registry = Arc::new(Registry::with_referrers(true));
    let expected = push_layers(&registry, Some(&keys));
    let answering = Arc::clone(&registry);
    let server = Server::start(move |request| answering.answer(request));
    let url = format!("oci://{}/team/app:v1", server.host());
    let (dir, certificate) = (Dir::new(), parsed(&keys.0, "rsa"));
    let open = || start(&url, &starting(&dir), Some(&certificate));
    read_all(&open().unwrap().1, &expected);
    // The tag moves to an image that nobody has signed.
    let (bytes, root) = verified_image(500, 313);
    let layers = [layer(&bytes, 500, Some(root))];
    let location = Location::parse(&url).unwrap();
    push(&location, &layers, &push_options(), &|_| true).unwrap();
    assert_eq!(open().err().unwrap().kind(), Kind::Untrusted);
    server.stop();
    read_all(&open().unwrap().1, &expected);
    // It moves back to what is signed.
    let signed = PushOptions {
        signer: Some(Arc::new(signer(&keys.0, "rsa"))),
        ..push_options()
    };
    let answering = Arc::clone(&registry);
    let server = Server::start(move |request| answering.answer(request));
    let location = Location::parse(&format!("oci://{}/team/app:v1", server.host())).unwrap();
    push(&location, &layers, &signed, &|_| true).unwrap();
    trusted(&location, &certificate, &starting(&dir)).unwrap();
}

#[test]
fn missing_chunks_of_a_second_start_need_one_token() {
    let registry = Arc::new(Registry::with_referrers(true));
    let expected = push_layers(&registry, None);
    let index = registry.manifest("team/app", "v1").unwrap();
    let digest = index["manifests"][0]["digest"].as_str().unwrap().to_owned();
    let tokens = TokenRegistry::start(registry);
    let url = format!("oci://{}/team/app@{digest}", tokens.server.host());
    let dir = Dir::new();
    let mut options = starting(&dir);
    options.connections = 8;
    drop(start(&url, &options, None).unwrap());
    assert_eq!(tokens.take_counts(), (1, 1));
    tokens.server.take_requests();
    let (_, images, _) = start(&url, &options, None).unwrap();
    assert_eq!(tokens.server.take_requests().len(), 0);
    std::thread::scope(|scope| {
        for (image, bytes) in images.iter().zip(&expected) {
            for at in (0..image.store.size() as usize).step_by(CHUNK) {
                scope.spawn(move || {
                    let mut read = [0; 4096];
                    image.store.read_exact_at(&mut read, at as u64).unwrap();
                    assert!(read == bytes[at..at + 4096], "{at}");
                });
            }
        }
    });
    assert_eq!(tokens.take_counts(), (1, 1));
}

#[test]
fn another_login_does_not_see_what_a_tag_named_and_no_token_is_kept() {
    let bytes = image(300, 314);
    let manifest =
        crate::registry::manifest(&[crate::registry::layer(crate::registry::LAYER, &bytes, None)]);
    let blob = bytes.clone();
    let (seen, token) = (Arc::new(Mutex::new(0)), "token-that-nobody-keeps");
    let count = Arc::clone(&seen);
    let server = Server::start(move |request| {
        let host = &request.headers["host"];
        *count.lock().unwrap() += 1;
        if request.path.starts_with("/token") {
            return Answer {
                status: 200,
                body: format!(r#"{{"token":"{token}"}}"#).into_bytes(),
                ..Answer::default()
            };
        }
        let bearer = format!("Bearer {token}");
        match request.headers.get("authorization") == Some(&bearer) {
            true => crate::registry::answer(request, &manifest, &blob),
            false => Answer::status(401).with(
                "WWW-Authenticate",
                format!("Bearer realm=\"http://{host}/token\""),
            ),
        }
    });
    let dir = Dir::new();
    fs::create_dir(&dir.0).unwrap();
    let cache = Dir(dir.0.join("cache"));
    let content = dir.0.join("content");
    fs::write(&content, &bytes).unwrap();
    let logins = dir.0.join("logins.json");
    let url = format!("oci://{}/team/app:v1", server.host());
    let start = |entry: &str| {
        let text = format!(r#"{{"auths":{{"{}":{entry}}}}}"#, server.host());
        fs::write(&logins, text).unwrap();
        let [cache, content] = [&cache.0, &content].map(|path| path.to_str().unwrap());
        let mut child = child(&["start", &url, cache, content]);
        run(child.env("REGISTRY_AUTH_FILE", &logins))
    };
    let one = r#"{"username":"one","password":"password-that-nobody-keeps"}"#;
    let other = r#"{"username":"other","password":"password-that-nobody-keeps"}"#;
    let refresh = r#"{"identitytoken":"refresh-that-nobody-keeps"}"#;
    for entry in [one, refresh] {
        let (is_success, text) = start(entry);
        assert!(is_success, "{text}");
    }
    assert!(*seen.lock().unwrap() > 0);
    let kept: Vec<u8> = files(&cache, "")
        .iter()
        .flat_map(|path| fs::read(path).unwrap())
        .collect();
    for secret in ["that-nobody-keeps", "Bearer"] {
        let found = kept
            .windows(secret.len())
            .any(|part| part == secret.as_bytes());
        assert!(!found, "{secret}");
    }
    server.stop();
    for entry in [one, refresh] {
        let (is_success, text) = start(entry);
        assert!(is_success && text.contains("cannot be reached"), "{text}");
    }
    // A password that was renewed is of the same login.
    let (is_success, text) = start(&one.replace("password-", "renewed-password-"));
    assert!(is_success, "{text}");
    for entry in [other, "{}"] {
        let (is_success, text) = start(entry);
        assert!(!is_success && text.contains("cannot connect"), "{text}");
    }
}
