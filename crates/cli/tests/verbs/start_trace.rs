//! Requests of a start: `tuff mount --trace`, `tuff stats --start` and `tuff doctor URL`.

use crate::common::{Place, code, is_root, stderr};
use crate::mount::can_mount;
use crate::remote::{Mounted, run, serve};
use crate::remote_login::base64;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tuff_testkit::http::{Answer, Request, Server};
use tuff_testkit::registry::Registry;
use tuff_testkit::{Rng, skipped};

/// Time that no test waits for, unless it fails.
const LONG: Duration = Duration::from_secs(60);

const PASSWORD: &str = "hunter2";
const TOKEN: &str = "t0k3n-of-the-registry";

/// Writes a tree with files that do not compress.
fn tree(place: &Place) {
    let mut rng = Rng::new(7);
    fs::create_dir_all(place.path("tree")).unwrap();
    for name in ["a", "b", "c"] {
        let content: Vec<u8> = (0..8 << 20).map(|_| rng.draw() as u8).collect();
        fs::write(place.path("tree").join(name), content).unwrap();
    }
    // Names, so that the metadata is more than the first request brings.
    fs::create_dir(place.path("tree/names")).unwrap();
    for n in 0..4000 {
        fs::write(place.path(&format!("tree/names/name-{n}")), "x").unwrap();
    }
    fs::copy("/bin/true", place.path("tree/true")).unwrap();
}

/// Registry with a password, which counts the bytes of bodies.
struct Private {
    server: Server,
    bytes: Arc<AtomicU64>,
}

impl Private {
    fn start(place: &Place) -> Self {
        let registry = Registry::with_referrers(true);
        let bytes = Arc::new(AtomicU64::new(0));
        let sent = Arc::clone(&bytes);
        let login = format!("Basic {}", base64(&format!("user:{PASSWORD}")));
        let server = Server::start(move |request| {
            let answer = private_answer(&registry, request, &login);
            if !answer.is_head {
                sent.fetch_add(answer.body.len() as u64, Ordering::SeqCst);
            }
            answer
        });
        let auth = base64(&format!("user:{PASSWORD}"));
        let logins = json!({"auths": {server.host(): {"auth": auth}}});
        fs::write(place.path("logins.json"), logins.to_string()).unwrap();
        Self { server, bytes }
    }

    fn url(&self) -> String {
        format!("oci://{}/app:v1", self.server.host())
    }
}

fn private_answer(registry: &Registry, request: &Request, login: &str) -> Answer {
    let sent = request.headers.get("authorization");
    if request.path.starts_with("/token") {
        let body = match sent.is_some_and(|sent| sent == login) {
            true => format!(r#"{{"token":"{TOKEN}"}}"#),
            false => return Answer::status(401),
        };
        return Answer {
            body: body.into_bytes(),
            ..Answer::status(200)
        };
    }
    if sent != Some(&format!("Bearer {TOKEN}")) {
        let host = &request.headers["host"];
        let realm = format!("Bearer realm=\"http://{host}/token\",service=\"{TOKEN}\"");
        return Answer::status(401).with("WWW-Authenticate", realm);
    }
    registry.answer(request)
}

/// Runs the command with the login of a registry.
fn run_with_login(place: &Place, args: &[&str]) {
    let mut command = place.command(args);
    let command = command
        .env("XDG_CACHE_HOME", place.path("cache"))
        .env("REGISTRY_AUTH_FILE", place.path("logins.json"));
    let out = command.output().unwrap();
    assert_eq!(code(&out), 0, "{}", stderr(&out));
}

/// Waits for a trace that is written after the end of a mount. Returns its requests, and the sums.
fn trace(path: &Path) -> (Vec<Value>, Value) {
    let start = Instant::now();
    loop {
        let text = fs::read_to_string(path).unwrap();
        let mut lines: Vec<Value> = text
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        let sums = lines.pop().unwrap();
        if !lines.is_empty() {
            return (lines, sums);
        }
        assert!(start.elapsed() < LONG, "{text}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Numbers of requests by reason.
fn reasons(requests: &[Value]) -> BTreeMap<&str, usize> {
    let mut reasons = BTreeMap::new();
    for request in requests {
        *reasons
            .entry(request["reason"].as_str().unwrap())
            .or_default() += 1;
    }
    reasons
}

/// Sum of a key over requests.
fn sum(requests: &[Value], key: &str) -> u64 {
    requests.iter().filter_map(|r| r[key].as_u64()).sum()
}

/// Ranges of requests, sorted. Those of the server have other forms.
fn ranges(requests: &[Value]) -> Vec<String> {
    let of = |request: &Value| {
        let (start, end) = (
            request["range_start"].as_u64()?,
            request["range_end"].as_u64()?,
        );
        Some(format!("bytes={start}-{}", end - 1))
    };
    let mut ranges: Vec<String> = requests.iter().filter_map(of).collect();
    ranges.sort();
    ranges
}

#[test]
fn a_trace_has_what_the_server_counted_with_reasons_and_without_secrets() {
    if !can_mount() {
        return;
    }
    let place = Place::new("trace-registry");
    tree(&place);
    fs::create_dir(place.path("mnt")).unwrap();
    let registry = Private::start(&place);
    run_with_login(&place, &["push", "-q", "tree", &registry.url()]);
    registry.server.take_requests();
    registry.bytes.store(0, Ordering::SeqCst);
    let url = registry.url();
    let args = [
        "mount",
        "--no-hedging",
        "--log",
        "log",
        "--trace",
        "t",
        &url,
        "mnt",
    ];
    run_with_login(&place, &args);
    let mounted = Mounted(&place);
    let read = fs::read(place.path("mnt/b")).unwrap();
    assert!(read == fs::read(place.path("tree/b")).unwrap());
    let live = place.run(&["stats", "--start", "--json", "mnt"]);
    assert_eq!(code(&live), 0, "{}", stderr(&live));
    let live: Value = serde_json::from_slice(&live.stdout).unwrap();
    let live_requests = live["requests"].as_array().unwrap();
    assert!(reasons(live_requests).contains_key("demand"), "{live}");
    let counters = place.text(&["stats", "mnt"]);
    assert!(!counters.contains('{'), "{counters}");
    place.unmount("mnt");
    drop(mounted);
    let (requests, sums) = trace(&place.path("t"));
    let seen = registry.server.take_requests();
    assert_eq!(requests.len(), seen.len(), "{requests:#?}");
    assert_eq!(sums["requests"], seen.len());
    assert_eq!(sums["omitted_requests"], 0);
    let bytes = registry.bytes.load(Ordering::SeqCst);
    assert_eq!(
        (sum(&requests, "bytes"), sums["bytes"].as_u64()),
        (bytes, Some(bytes))
    );
    let mut seen_ranges: Vec<_> = seen
        .iter()
        .filter_map(|request| request.headers.get("range").cloned())
        .collect();
    seen_ranges.sort();
    assert_eq!(ranges(&requests), seen_ranges);
    let by_path = |part: &str| seen.iter().filter(|r| r.path.contains(part)).count();
    let reasons = reasons(&requests);
    assert_eq!(reasons["login"], by_path("/token"));
    assert_eq!(reasons["manifest"], by_path("/manifests/"));
    assert_eq!(reasons["beside"], by_path("/referrers/"));
    assert!(reasons["first"] > 0 && reasons["demand"] > 0, "{reasons:?}");
    // All of one file of three was read, in whole chunks.
    let used = sum(&requests, "used_bytes");
    assert!((8 << 20..=bytes).contains(&used), "{used} of {bytes}");
    let text = fs::read_to_string(place.path("t")).unwrap();
    let login = base64(&format!("user:{PASSWORD}"));
    for secret in [PASSWORD, TOKEN, &login] {
        assert!(!text.contains(secret), "{text}");
    }
    let shown = place.text(&["stats", "--start", "t"]);
    assert!(
        shown.lines().count() > requests.len() + reasons.len(),
        "{shown}"
    );
    let all = shown.lines().find(|line| line.starts_with("all ")).unwrap();
    assert!(all.contains(&format!(" {} ", requests.len())), "{shown}");
    let file = &place.json(&["stats", "--start", "--json", "t"])[0];
    assert_eq!(file["requests"].as_array().unwrap(), &requests);
}

#[test]
fn the_start_of_a_mount_by_the_kernel_is_shown_and_traced() {
    if !can_mount() {
        return;
    }
    let place = Place::new("trace-kernel");
    tree(&place);
    place.text(&["build", "-q", "tree", "i"]);
    fs::create_dir(place.path("mnt")).unwrap();
    let server = serve(&place);
    // Where the kernel cannot, the image is served through FUSE, of which the same holds.
    let args = [
        "mount", "--kernel", "--log", "log", "--trace", "t", "IMAGE", "mnt",
    ];
    let out = run(&place, &server.url("/i"), &args);
    assert_eq!(code(&out), 0, "{}", stderr(&out));
    let mounted = Mounted(&place);
    assert!(fs::read(place.path("mnt/c")).unwrap() == fs::read(place.path("tree/c")).unwrap());
    let live = place.json(&["stats", "--start", "--json", "mnt"]);
    let live = live[0]["requests"].as_array().unwrap();
    assert!(reasons(live).contains_key("demand"), "{live:?}");
    assert!(sum(live, "used_bytes") >= 8 << 20, "{live:?}");
    place.unmount("mnt");
    drop(mounted);
    let (requests, _) = trace(&place.path("t"));
    assert!(requests.len() >= live.len(), "{requests:?}");
}

/// The query of a signed URL, its user, and the path of a redirect's target are secrets.
#[test]
fn a_trace_has_no_query_and_no_target_of_a_redirect() {
    if !can_mount() {
        return;
    }
    let place = Place::with_image("trace-redirect");
    fs::create_dir(place.path("mnt")).unwrap();
    let target = serve(&place);
    let to = target.url("/i?signature=swordfish");
    let server = Server::start(move |request| match request.path.contains("i.") {
        true => Answer::status(404),
        false => Answer::status(307).with("Location", to.clone()),
    });
    let url = format!("http://user:hunter2@{}/i?key=sesame", server.host());
    let args = ["mount", "--log", "log", "--trace", "t", "IMAGE", "mnt"];
    let out = run(&place, &url, &args);
    assert_eq!(code(&out), 0, "{}", stderr(&out));
    let mounted = Mounted(&place);
    fs::read(place.path("mnt/dir/text")).unwrap();
    place.unmount("mnt");
    drop(mounted);
    let (requests, _) = trace(&place.path("t"));
    let text = fs::read_to_string(place.path("t")).unwrap();
    for secret in ["user", "hunter2", "sesame", "swordfish"] {
        assert!(!text.contains(secret), "{text}");
    }
    let of = |url: &str| requests.iter().filter(|r| r["url"] == url).count();
    let origin = format!("http://{}", target.host());
    assert!(of(&origin) > 0, "{text}");
    assert_eq!(of(&format!("{}?...", server.url("/i"))), 1, "{text}");
}

#[test]
fn a_trace_that_cannot_be_written_is_one_sentence() {
    let place = Place::with_image("trace-refused");
    fs::create_dir(place.path("mnt")).unwrap();
    let server = serve(&place);
    let url = server.url("/i");
    fs::write(place.path("notes"), "of mine").unwrap();
    for (image, file, expected) in [("i", "t", 2), (&*url, "notes", 2), (&url, "no/dir/t", 5)] {
        let out = run(&place, image, &["mount", "--trace", file, "IMAGE", "mnt"]);
        let message = stderr(&out);
        assert_eq!(
            (code(&out), message.lines().count()),
            (expected, 1),
            "{message}"
        );
    }
    let out = place.run(&["mount", "--kernel", "--trace", "t", "i", "mnt"]);
    assert_eq!(code(&out), 2, "{}", stderr(&out));
    assert_eq!(fs::read(place.path("notes")).unwrap(), b"of mine");
    let out = place.run(&["stats", "--start", "notes"]);
    assert_eq!(code(&out), 2, "{}", stderr(&out));
    assert!(stderr(&out).contains("no trace"), "{}", stderr(&out));
}

/// Filesystem of 64 KiB, unmounted on drop.
struct Small<'a>(&'a Place);

impl Drop for Small<'_> {
    fn drop(&mut self) {
        let path = self.0.path("small");
        let _ = Command::new("umount").arg("-l").arg(path).output();
    }
}

#[test]
fn a_full_disk_is_one_sentence_and_the_mount_goes_on() {
    if !can_mount() {
        return;
    }
    if !is_root() {
        return skipped("mounting a tmpfs needs root");
    }
    let place = Place::with_image("trace-full");
    fs::create_dir(place.path("mnt")).unwrap();
    fs::create_dir(place.path("small")).unwrap();
    let mut tmpfs = Command::new("mount");
    let tmpfs = tmpfs.args(["-t", "tmpfs", "-o", "size=64k", "tmpfs"]);
    let out = tmpfs.arg(place.path("small")).output().unwrap();
    if !out.status.success() {
        return skipped("no tmpfs can be mounted");
    }
    let small = Small(&place);
    let server = serve(&place);
    // Full from the start on.
    let _ = fs::write(place.path("small/rest"), vec![1; 128 << 10]);
    let args = [
        "mount", "--log", "log", "--trace", "small/t", "IMAGE", "mnt",
    ];
    let out = run(&place, &server.url("/i"), &args);
    assert_eq!(code(&out), 0, "{}", stderr(&out));
    let mounted = Mounted(&place);
    let read = fs::read(place.path("mnt/dir/text")).unwrap();
    assert_eq!(read, crate::common::text().as_bytes());
    place.unmount("mnt");
    drop(mounted);
    let start = Instant::now();
    loop {
        let log = fs::read_to_string(place.path("log")).unwrap_or_default();
        if log.matches("cannot write the trace").count() == 2 {
            break;
        }
        assert!(start.elapsed() < LONG, "{log}");
        std::thread::sleep(Duration::from_millis(10));
    }
    drop(small);
}

/// Facts of `tuff doctor URL`, by their names.
fn facts(object: &Value) -> BTreeMap<&str, &Value> {
    let facts = object["facts"].as_array().unwrap().iter();
    facts
        .map(|fact| (fact["name"].as_str().unwrap(), fact))
        .collect()
}

/// Runs `tuff doctor` for a URL, with directories of its own, which stay empty.
fn doctor(place: &Place, url: &str) -> Value {
    let _ = fs::create_dir(place.path("tmp"));
    let mut doctor = place.command(&["doctor", "--json", url]);
    let doctor = doctor
        .env("TMPDIR", place.path("tmp"))
        .env("XDG_CACHE_HOME", place.path("nothing"))
        .env("REGISTRY_AUTH_FILE", place.path("logins.json"));
    let out = doctor.output().unwrap();
    assert_eq!(code(&out), 0, "{}", stderr(&out));
    assert_eq!(fs::read_dir(place.path("tmp")).unwrap().count(), 0);
    assert!(!place.path("nothing").exists());
    serde_json::from_slice(&out.stdout).unwrap()
}

#[test]
fn doctor_tells_what_the_start_of_an_image_in_a_registry_waits_for() {
    let place = Place::new("doctor-registry");
    tree(&place);
    let registry = Private::start(&place);
    let url = registry.url();
    run_with_login(
        &place,
        &["push", "-q", "--start-with", "/true", "tree", &url],
    );
    registry.server.take_requests();
    let object = doctor(&place, &url);
    let facts = facts(&object);
    let number = |key: &str| object[key].as_u64().unwrap();
    assert_eq!(number("images"), 1, "{object:#}");
    // 401, token, index, manifest, and first bytes.
    let found = facts["before-mount"]["found"].as_str().unwrap();
    let steps = "(1 manifest, 1 login, 2 manifest, ";
    assert!(found.contains(steps) && found.contains(" first"), "{found}");
    // Nothing that opening the image reads is missing after them.
    assert!(!found.contains("demand"), "{found}");
    assert!(number("round_trips") >= 5, "{found}");
    let sent = registry.server.take_requests();
    for name in ["ranges", "metadata", "verification", "start-list", "link"] {
        assert_eq!(facts[name]["state"], "ok", "{object:#}");
    }
    for name in ["signature", "profile"] {
        assert_eq!(facts[name]["found"], "none", "{object:#}");
    }
    assert_eq!((number("stated_metadata"), number("whole_answers")), (1, 0));
    assert!(number("list_entries") > 0 && number("list_bytes") > 0);
    assert!(number("bytes") < 4 << 20 && object["round_trip_ms"].as_f64().unwrap() > 0.0);
    let text = object.to_string();
    assert!(!text.contains(PASSWORD) && !text.contains(TOKEN), "{text}");
    // It fetches little, and asks for the signature and the profile.
    let referrers = sent.iter().filter(|r| r.path.contains("/referrers/"));
    assert_eq!(referrers.count(), 2);
    let profile = "tuff profile 1\n1 1 0 4096 /true\n";
    fs::write(place.path("profile"), profile).unwrap();
    run_with_login(
        &place,
        &["push", "-q", "--profile", "profile", "tree", &url],
    );
    let object = doctor(&place, &url);
    let found = self::facts(&object)["profile"]["found"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(found.ends_with("in the manifest"), "{found}");
    assert_eq!(object["profile_bytes"], profile.len(), "{object:#}");
}

#[test]
fn doctor_names_a_server_that_answers_ranges_with_the_whole_object() {
    let place = Place::new("doctor-whole");
    tree(&place);
    place.text(&["build", "-q", "tree", "i"]);
    let image = fs::read(place.path("i")).unwrap();
    let whole = AtomicU64::new(0);
    let server = Server::start(move |request| match &*request.path {
        // A mirror without a copy, for its first two answers.
        "/i" if whole.fetch_add(1, Ordering::SeqCst) < 2 => Answer {
            body: image.clone(),
            ..Answer::status(200).with("ETag", "\"v1\"")
        },
        "/i" => Answer::object(request, &image, "\"v1\""),
        _ => Answer::status(404),
    });
    let object = doctor(&place, &server.url("/i"));
    let facts = facts(&object);
    assert_eq!(object["whole_answers"], 2, "{object:#}");
    let found = facts["ranges"]["found"].as_str().unwrap();
    assert!(found.contains("200") && found.contains("mirror"), "{found}");
    assert_eq!(facts["start-list"]["found"], "none");
    assert_eq!(facts["verification"]["state"], "limited");
    assert!(facts["ranges"]["advice"].is_string());
}

#[test]
fn doctor_of_what_is_no_image_behind_a_url_is_one_sentence() {
    let place = Place::with_image("doctor-dead");
    fs::write(place.path("text"), vec![b'x'; 9000]).unwrap();
    let server = serve(&place);
    let dead = Server::start(|_| Answer::status(404));
    let gone = dead.url("/i");
    dead.stop();
    let text = server.url("/text");
    let missing = server.url("/missing");
    for (url, expected) in [(&*gone, 5), (&text, 3), (&missing, 5), ("i", 2)] {
        let out = run(&place, url, &["doctor", "IMAGE"]);
        let message = stderr(&out);
        assert_eq!(
            (code(&out), message.lines().count()),
            (expected, 1),
            "{message}"
        );
        assert!(out.stdout.is_empty());
    }
}
