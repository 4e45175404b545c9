//! Credentials: they stay with their origin, and are read again when a server refuses them.
//!
//! Logins come from the environment, which belongs to the whole process, so these tests read in another one.

use crate::common::{CHUNK, Dir, child, image};
use crate::process::{run, run_with};
use crate::registry::{LAYER, answer, layer, manifest};
use base64::Engine;
use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tuff_testkit::hostile::{Origin, steps};
use tuff_testkit::http::{Answer, Request, Server};

/// Number of chunks of the image.
const CHUNKS: usize = 94;

fn bytes() -> Vec<u8> {
    image(CHUNKS * CHUNK / 4096, 70)
}

/// Reads all of an image in another process, which has the logins in a file.
fn read_all(url: &str, logins: &Path) -> (bool, String) {
    let logins = [("REGISTRY_AUTH_FILE", logins.to_str().unwrap())];
    run_with("read", url, &bytes(), &logins)
}

/// Reads chunks one after the other, which takes many requests.
fn read_backwards(url: &str, logins: &Path) -> (bool, String) {
    let logins = [("REGISTRY_AUTH_FILE", logins.to_str().unwrap())];
    run_with("read-backwards", url, &bytes(), &logins)
}

/// File with a login for a registry, replaced as a whole.
struct Logins {
    dir: Dir,
    host: Mutex<String>,
}

impl Logins {
    fn new() -> Arc<Self> {
        let dir = Dir::new();
        fs::create_dir(&dir.0).unwrap();
        Arc::new(Self {
            dir,
            host: Mutex::default(),
        })
    }

    fn path(&self) -> PathBuf {
        self.dir.0.join("logins.json")
    }

    fn write(&self, host: &str, entry: &str) {
        *self.host.lock().unwrap() = host.to_owned();
        self.replace(entry);
    }

    fn replace(&self, entry: &str) {
        let host = self.host.lock().unwrap();
        let text = format!(r#"{{"auths":{{"{host}":{entry}}}}}"#);
        let new = self.dir.0.join("new");
        fs::write(&new, text).unwrap();
        fs::rename(new, self.path()).unwrap();
    }
}

fn password(password: &str) -> String {
    format!(r#"{{"username":"user","password":"{password}"}}"#)
}

fn basic(password: &str) -> String {
    let text = format!("user:{password}");
    let encoded = base64::engine::general_purpose::STANDARD.encode(text);
    format!("Basic {encoded}")
}

fn json(status: u16, body: impl Into<String>) -> Answer {
    Answer {
        status,
        body: body.into().into_bytes(),
        ..Answer::default()
    }
}

fn is_sent(request: &Request, value: &str) -> bool {
    request.headers.get("authorization").map(String::as_str) == Some(value)
}

#[test]
fn refresh_tokens_do_not_follow_redirects_of_a_token_service() {
    for status in [301, 302, 303, 307, 308] {
        let other = Origin::start(Ipv4Addr::new(127, 0, 0, 2));
        other.answer(|_| steps(&json(200, r#"{"token":"t"}"#)));
        let target = format!("http://{}/token", other.host());
        let server = Server::start(move |request| {
            let host = &request.headers["host"];
            match request.path.starts_with("/token") {
                true => Answer::status(status).with("Location", &target),
                false => Answer::status(401).with(
                    "WWW-Authenticate",
                    format!("Bearer realm=\"http://{host}/token\""),
                ),
            }
        });
        let logins = Logins::new();
        for entry in [
            r#"{"identitytoken":"REFRESH"}"#.to_owned(),
            password("SECRET"),
        ] {
            logins.write(&server.host(), &entry);
            let url = format!("oci://{}/team/app:v1", server.host());
            let (is_done, text) = read_all(&url, &logins.path());
            assert!(
                !is_done && text.contains("redirects a request with credentials"),
                "{text}"
            );
            assert!(other.received().is_empty(), "{status}");
        }
    }
}

#[test]
fn a_realm_on_another_host_without_tls_gets_no_request() {
    let other = Origin::start(Ipv4Addr::new(127, 0, 0, 2));
    let host = other.host();
    for realm in [
        format!("http://{host}/token"),
        format!("http://localhost@{host}/token"),
        "http://169.254.169.254/token".to_owned(),
    ] {
        let challenge = format!("Bearer realm=\"{realm}\"");
        let server =
            Server::start(move |_| Answer::status(401).with("WWW-Authenticate", &challenge));
        let logins = Logins::new();
        logins.write(&server.host(), &password("SECRET"));
        let url = format!("oci://{}/team/app:v1", server.host());
        let (is_done, text) = read_all(&url, &logins.path());
        assert!(!is_done && text.contains("names a token service"), "{text}");
        assert!(!text.contains("SECRET"), "{text}");
        assert!(other.received().is_empty());
    }
}

#[test]
fn the_challenge_of_a_redirect_target_is_not_answered() {
    let evil = Origin::start(Ipv4Addr::new(127, 0, 0, 3));
    let storage = Origin::start(Ipv4Addr::new(127, 0, 0, 2));
    let challenge = format!("Bearer realm=\"http://{}/token\"", evil.host());
    storage.answer(move |_| steps(&Answer::status(401).with("WWW-Authenticate", &challenge)));
    for place in ["/blob", "/v2/team/app/blob"] {
        let bytes = bytes();
        let manifest = manifest(&[layer(LAYER, &bytes, None)]);
        let target = format!("http://{}{place}", storage.host());
        let server = Server::start(move |request| match request.path.contains("/blobs/") {
            true => Answer::status(307).with("Location", &target),
            false => answer(request, &manifest, b""),
        });
        let logins = Logins::new();
        logins.write(&server.host(), &password("SECRET"));
        let url = format!("oci://{}/team/app:v1", server.host());
        let (is_done, text) = read_all(&url, &logins.path());
        let words = format!(
            "access denied: the server answers 401 Unauthorized at http://{}",
            storage.host()
        );
        assert!(!is_done && text.contains(&words), "{text}");
        assert!(evil.received().is_empty());
    }
}

#[test]
fn storage_that_asks_for_a_referer_gets_the_path_without_the_query() {
    let bytes = bytes();
    let manifest = manifest(&[layer(LAYER, &bytes, None)]);
    let storage = Origin::start(Ipv4Addr::new(127, 0, 0, 2));
    let (front, wrong) = (
        Arc::new(Mutex::new(String::new())),
        Arc::new(AtomicBool::new(false)),
    );
    let (host, is_wrong) = (Arc::clone(&front), Arc::clone(&wrong));
    storage.answer(move |request| {
        let expected = format!("http://{}/v2/team/app/blobs/sha256:", host.lock().unwrap());
        let referer = request.headers.get("referer");
        match referer.is_some_and(|r| r.starts_with(&expected) && !r.contains(['?', '@'])) {
            true => steps(&Answer::object(request, &bytes, "")),
            false => {
                is_wrong.store(true, Ordering::SeqCst);
                steps(&Answer::status(401).with("WWW-Authenticate", "Basic realm=\"cdn\""))
            }
        }
    });
    let target = format!("http://{}/cdn/blob?sig=1", storage.host());
    let server = Server::start(move |request| match request.path.contains("/blobs/") {
        true => Answer::status(307).with("Location", &target),
        false => answer(request, &manifest, b""),
    });
    *front.lock().unwrap() = server.host();
    let logins = Logins::new();
    logins.write("none", "{}");
    let url = format!("oci://{}/team/app:v1", server.host());
    let (is_done, text) = read_all(&url, &logins.path());
    assert!(is_done, "{text}");
    assert!(!wrong.load(Ordering::SeqCst));
}

#[test]
fn the_referer_of_a_url_is_its_origin() {
    let bytes = bytes();
    let storage = Origin::start(Ipv4Addr::new(127, 0, 0, 2));
    storage.answer(move |request| steps(&Answer::object(request, &bytes, "\"v1\"")));
    let target = format!("http://{}/cdn", storage.host());
    let server = Server::start(move |_| Answer::status(302).with("Location", &target));
    let url = format!("http://user:SECRET@{}/PATHSECRET/i?q=SECRET", server.host());
    let (is_done, text) = run_with("read", &url, &self::bytes(), &[]);
    assert!(is_done, "{text}");
    let received = String::from_utf8_lossy(&storage.received()).into_owned();
    let referer = format!("referer: http://{}/\r\n", server.host());
    assert!(
        received.contains(&referer) && !received.contains("SECRET"),
        "{received}"
    );
}

#[test]
fn a_redirect_that_hands_on_a_secret_query_is_refused() {
    let other = Origin::start(Ipv4Addr::new(127, 0, 0, 2));
    let host = other.host();
    let server = Server::start(move |request| {
        Answer::status(301).with("Location", format!("http://{host}{}", request.path))
    });
    let url = server.url("/i?token=SECRET");
    let (is_done, text) = run_with("read", &url, &self::bytes(), &[]);
    assert!(
        !is_done && text.contains("with a credential of its own URL"),
        "{text}"
    );
    assert!(other.received().is_empty());
}

#[test]
fn no_proxy_leads_to_this_machine() {
    let proxy = Origin::start(Ipv4Addr::new(127, 0, 0, 2));
    let bytes = bytes();
    let server = Server::start(move |request| Answer::object(request, &bytes, "\"v1\""));
    let at = format!("http://{}", proxy.host());
    let variables = [
        ("HTTP_PROXY", &*at),
        ("http_proxy", &*at),
        ("ALL_PROXY", &*at),
    ];
    let url = format!("http://user:SECRET@{}/i", server.host());
    let (is_done, text) = run_with("read", &url, &self::bytes(), &variables);
    assert!(is_done, "{text}");
    assert!(proxy.received().is_empty());
}

/// Registry whose password changes with each of `CHANGES` numbers of requests.
struct Expiring {
    logins: Arc<Logins>,
    /// Number of the password.
    number: AtomicU32,
    /// Requests with the right password.
    served: AtomicU32,
    /// Requests with a wrong password.
    refused: AtomicU32,
    /// Time after which a client of the registry learns of a new password.
    delay: Duration,
}

/// Requests with the same password.
const REQUESTS: u32 = 4;

impl Expiring {
    fn new(delay: Duration) -> Arc<Self> {
        Arc::new(Self {
            logins: Logins::new(),
            number: AtomicU32::new(1),
            served: AtomicU32::new(0),
            refused: AtomicU32::new(0),
            delay,
        })
    }

    /// True if a request has the password, which may change with it.
    fn accepts(&self, request: &Request) -> bool {
        let number = self.number.load(Ordering::SeqCst);
        if !is_sent(request, &basic(&format!("p{number}"))) {
            self.refused.fetch_add(
                u32::from(request.headers.contains_key("authorization")),
                Ordering::SeqCst,
            );
            return false;
        }
        if self.served.fetch_add(1, Ordering::SeqCst) % REQUESTS == REQUESTS - 1 {
            let next = self.number.fetch_add(1, Ordering::SeqCst) + 1;
            let (logins, delay) = (Arc::clone(&self.logins), self.delay);
            std::thread::spawn(move || {
                std::thread::sleep(delay);
                logins.replace(&password(&format!("p{next}")));
            });
        }
        true
    }
}

#[test]
fn a_password_that_changes_is_read_again() {
    const EXPIRED: &str = r#"{"errors":[{"code":"DENIED","message":"Your authorization token has expired. Reauthenticate and try again."}]}"#;
    for status in [401, 403] {
        for delay in [0, 700].map(Duration::from_millis) {
            let state = Expiring::new(delay);
            let bytes = bytes();
            let manifest = manifest(&[layer(LAYER, &bytes, None)]);
            let registry = Arc::clone(&state);
            let server = Server::start(move |request| {
                match (
                    registry.accepts(request),
                    request.headers.contains_key("authorization"),
                ) {
                    (true, _) => answer(request, &manifest, &bytes),
                    (false, true) if status == 403 => json(403, EXPIRED),
                    (false, _) => Answer::status(401).with(
                        "WWW-Authenticate",
                        "Basic realm=\"https://x/\",service=\"ecr\"",
                    ),
                }
            });
            state.logins.write(&server.host(), &password("p1"));
            let url = format!("oci://{}/team/app:v1", server.host());
            let (is_done, text) = read_backwards(&url, &state.logins.path());
            assert!(is_done, "{text}");
            let changes = state.number.load(Ordering::SeqCst) - 1;
            assert!(changes >= 2, "{changes}");
            // One for the old password, and one for each login that is read too early.
            let refused = state.refused.load(Ordering::SeqCst);
            assert!(
                refused <= 4 * (changes + 1),
                "{refused} refused, {changes} changes"
            );
        }
    }
}

#[test]
fn a_password_of_a_token_service_that_changes_is_read_again() {
    let state = Expiring::new(Duration::ZERO);
    let bytes = bytes();
    let manifest = manifest(&[layer(LAYER, &bytes, None)]);
    let (registry, left) = (Arc::clone(&state), AtomicU32::new(0));
    let server = Server::start(move |request| {
        let host = &request.headers["host"];
        if request.path.starts_with("/token") {
            if !registry.accepts(request) {
                return Answer::status(401);
            }
            left.store(2, Ordering::SeqCst);
            // Some services leave the name empty that others use.
            return json(200, r#"{"token":"","access_token":"ACCESS"}"#);
        }
        let take = |left: u32| left.checked_sub(1);
        let is_valid = is_sent(request, "Bearer ACCESS")
            && left
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, take)
                .is_ok();
        match is_valid {
            true => answer(request, &manifest, &bytes),
            false => Answer::status(401).with(
                "WWW-Authenticate",
                format!("Bearer realm=\"http://{host}/token\""),
            ),
        }
    });
    state.logins.write(&server.host(), &password("p1"));
    let url = format!("oci://{}/team/app:v1", server.host());
    let (is_done, text) = read_backwards(&url, &state.logins.path());
    assert!(is_done, "{text}");
    assert!(state.number.load(Ordering::SeqCst) >= 2);
}

#[test]
fn a_wrong_password_makes_few_requests_and_the_right_one_ends_that() {
    let bytes = bytes();
    let manifest = manifest(&[layer(LAYER, &bytes, None)]);
    let logins = Logins::new();
    let refuse = PathBuf::from(format!("{}.refuse", logins.path().display()));
    let refused = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&refused);
    let server = Server::start(move |request| {
        let good = if refuse.exists() { "new" } else { "old" };
        if is_sent(request, &basic(good)) {
            return answer(request, &manifest, &bytes);
        }
        count.fetch_add(1, Ordering::SeqCst);
        Answer::status(401).with("WWW-Authenticate", "Basic realm=x")
    });
    logins.write(&server.host(), &password("new"));
    let path = logins.path();
    fs::rename(&path, format!("{}.next", path.display())).unwrap();
    logins.write(&server.host(), &password("old"));
    let url = format!("oci://{}/team/app:v1", server.host());
    let (cache, path) = (Dir::new(), path.to_str().unwrap());
    let args = ["read-refused", &url, cache.0.to_str().unwrap(), path];
    let (is_done, text) = run(child(&args).env("REGISTRY_AUTH_FILE", path));
    assert!(is_done, "{text}");
    // Before the login is known, those on their way when it changes, and the login that is still the same.
    let refused = refused.load(Ordering::SeqCst);
    assert!(refused <= 20, "{refused}");
}

#[test]
fn keys_of_a_profile_that_expire_are_read_again() {
    let dir = Dir::new();
    fs::create_dir(&dir.0).unwrap();
    let keys = dir.0.join("keys");
    let write = |keys: &Path, number: u32| {
        let text = format!(
            "[default]\naws_access_key_id = KEY\naws_secret_access_key = x\naws_session_token = session{number}\n"
        );
        let new = keys.with_extension("new");
        fs::write(&new, text).unwrap();
        fs::rename(new, keys).unwrap();
    };
    write(&keys, 1);
    let (bytes, file) = (bytes(), keys.clone());
    let (number, served) = (Arc::new(AtomicU32::new(1)), AtomicU32::new(0));
    let current = Arc::clone(&number);
    let server = Server::start(move |request| {
        let number = current.load(Ordering::SeqCst);
        if !request
            .path
            .contains(&format!("X-Amz-Security-Token=session{number}&"))
        {
            return json(
                400,
                "<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>",
            );
        }
        if served.fetch_add(1, Ordering::SeqCst) % REQUESTS == REQUESTS - 1 {
            current.store(number + 1, Ordering::SeqCst);
            write(&file, number + 1);
        }
        Answer::object(request, &bytes, "\"e\"")
    });
    let endpoint = server.url("");
    let variables = [
        ("AWS_ENDPOINT_URL", &*endpoint),
        ("AWS_SHARED_CREDENTIALS_FILE", keys.to_str().unwrap()),
    ];
    let content = self::bytes();
    let (is_done, text) = run_with("read-backwards", "s3://bucket/i", &content, &variables);
    assert!(is_done, "{text}");
    assert!(number.load(Ordering::SeqCst) >= 3);
}

#[test]
fn a_session_token_of_a_bucket_does_not_follow_redirects() {
    let other = Origin::start(Ipv4Addr::new(127, 0, 0, 2));
    other.answer(|_| steps(&Answer::status(200)));
    let host = other.host();
    let server = Server::start(move |request| {
        Answer::status(307).with("Location", format!("http://{host}{}", request.path))
    });
    let endpoint = server.url("");
    let variables = [
        ("AWS_ENDPOINT_URL", &*endpoint),
        ("AWS_ACCESS_KEY_ID", "KEY"),
        ("AWS_SECRET_ACCESS_KEY", "hush-key"),
        ("AWS_SESSION_TOKEN", "hush-token"),
    ];
    for action in ["push", "read"] {
        let bytes = image(100, 71);
        let (is_done, text) = run_with(action, "s3://bucket/i", &bytes, &variables);
        assert!(!is_done, "{text}");
        assert!(other.received().is_empty());
        assert!(!text.contains("hush"), "{text}");
    }
}

#[test]
fn a_login_that_changes_while_it_is_refused_is_read_once_more() {
    let bytes = bytes();
    let manifest = manifest(&[layer(LAYER, &bytes, None)]);
    let logins = Logins::new();
    let (file, refused) = (Arc::clone(&logins), Arc::new(AtomicU32::new(0)));
    let count = Arc::clone(&refused);
    let server = Server::start(move |request| {
        if is_sent(request, &basic("new")) {
            return answer(request, &manifest, &bytes);
        }
        if request.headers.contains_key("authorization") {
            count.fetch_add(1, Ordering::SeqCst);
            file.replace(&password("new"));
        }
        Answer::status(401).with("WWW-Authenticate", "Basic realm=x")
    });
    logins.write(&server.host(), &password("old"));
    let url = format!("oci://{}/team/app:v1", server.host());
    let (is_done, text) = read_all(&url, &logins.path());
    assert!(is_done, "{text}");
    assert_eq!(refused.load(Ordering::SeqCst), 1);
}
