//! Mounts of images behind URLs: recording, prefetch by a profile, and the background fill.

use crate::common::{Place, code, stderr};
use crate::mount::can_mount;
use crate::push::{pushed, start};
use crate::remote::{Mounted, run, serve};
use serde_json::json;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::Mutex;
use std::time::{Duration, Instant};
use tuff_testkit::Rng;
use tuff_testkit::http::{Answer, Server};

/// Time that no test waits for, unless it fails.
const LONG: Duration = Duration::from_secs(60);

/// Number of files of [`scattered_image`].
const FILES: usize = 600;

/// Content of a file, which does not compress.
fn content(n: usize) -> Vec<u8> {
    let mut rng = Rng::new(n as u64);
    let len = 20_000 + rng.below(80_000);
    (0..len).map(|_| rng.draw() as u8).collect()
}

/// Image `i` of about 36 MiB in many files and some directories.
fn scattered_image(place: &Place) {
    for n in 0..FILES {
        let dir = place.path("tree").join(format!("dir{}", n % 7));
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join(format!("file{n}")), content(n)).unwrap();
    }
    let out = place.run(&["build", "-q", "tree", "i"]);
    assert_eq!(code(&out), 0, "{}", stderr(&out));
}

/// Reads files all over the image, in an order of their own.
fn read_some(place: &Place) {
    let mut rng = Rng::new(5);
    for _ in 0..80 {
        let n = rng.below(FILES);
        let path = format!("mnt/dir{}/file{n}", n % 7);
        assert!(fs::read(place.path(&path)).unwrap() == content(n), "{path}");
    }
}

/// Mounts with a cache of its own, reads, and unmounts. Returns the number of reads that waited for the network.
fn misses(place: &Place, url: &str, cache: &str, options: &[&str], is_prefetched: bool) -> u64 {
    let _ = fs::create_dir(place.path("mnt"));
    let _ = fs::remove_file(place.path("log"));
    let args = ["mount", "-v", "--log", "log", "--cache-dir", cache];
    let out = run(
        place,
        url,
        &[&args[..], options, &["IMAGE", "mnt"]].concat(),
    );
    assert_eq!(code(&out), 0, "{}", stderr(&out));
    let mounted = Mounted(place);
    if is_prefetched {
        wait(place, "prefetch", || {
            let log = fs::read_to_string(place.path("log")).unwrap_or_default();
            log.contains("prefetching") && counter(place, "remote_pending_bytes") == 0
        });
    }
    read_some(place);
    let misses = counter(place, "remote_demand_misses");
    place.unmount("mnt");
    drop(mounted);
    misses
}

fn counter(place: &Place, name: &str) -> u64 {
    let out = place.run(&["stats", "mnt"]);
    assert_eq!(code(&out), 0, "{}", stderr(&out));
    let text = String::from_utf8(out.stdout).unwrap();
    let value = text.lines().find_map(|line| line.strip_prefix(name));
    value.unwrap().trim().parse().unwrap()
}

fn wait(place: &Place, what: &str, mut is_done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_done() {
        let log = fs::read_to_string(place.path("log")).unwrap_or_default();
        assert!(start.elapsed() < LONG, "{what}: {log}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_profile_saves_most_misses() {
    if !can_mount() {
        return;
    }
    let place = Place::new("remote-profile");
    scattered_image(&place);
    let dir = place.0.clone();
    let server = Server::start(move |request| {
        let bytes = fs::read(dir.join(request.path.trim_start_matches('/')));
        bytes.map_or(Answer::status(404), |bytes| Answer {
            delay: Duration::from_millis(20),
            ..Answer::object(request, &bytes, "\"v1\"")
        })
    });
    let url = server.url("/i");
    let without = misses(&place, &url, "c0", &["--record", "p"], false);
    // Neighbours of what was read are there without a request of their own.
    assert!(without >= 4, "{without}");
    let given = misses(&place, &url, "c1", &["--prefetch", "p"], true);
    assert!(given * 4 <= without, "{given} of {without}");
    // Beside the image it is found.
    fs::rename(place.path("p"), place.path("i.profile")).unwrap();
    let found = misses(&place, &url, "c2", &[], true);
    assert!(found * 4 <= without, "{found} of {without}");
    // One that is none does not keep anybody from the image.
    fs::write(place.path("i.profile"), "no profile").unwrap();
    let spoiled = misses(&place, &url, "c3", &[], false);
    assert!(spoiled >= 4, "{spoiled}");
    let log = fs::read_to_string(place.path("log")).unwrap();
    assert!(log.contains("no prefetch"), "{log}");
}

#[test]
fn the_recording_of_a_manifest_needs_no_request_and_changes_no_byte() {
    if !can_mount() {
        return;
    }
    let place = Place::new("remote-recording");
    scattered_image(&place);
    place.text(&["verity", "add", "-q", "i"]);
    let recording = "tuff profile 1\n1 1 0 200000 /dir3/file3\n2 1 0 200000 /dir5/file5\n";
    fs::write(place.path("p"), recording).unwrap();
    let (registry, server, url) = start();
    let done = pushed(&place, &[], &["--profile", "p", "i", &url]);
    let digest = done["manifest"].as_str().unwrap();
    let manifest = registry.manifest("team/app", digest).unwrap();
    assert_eq!(manifest["annotations"]["vnd.tuff.profile"], recording);
    fs::create_dir(place.path("mnt")).unwrap();
    let mount = |cache: &str, options: &[&str]| {
        let args = ["mount", "-v", "--log", "log", "--cache-dir", cache];
        let _ = fs::remove_file(place.path("log"));
        let args = [&args[..], options, &["IMAGE", "mnt"]].concat();
        let out = run(&place, &url, &args);
        assert_eq!(code(&out), 0, "{}", stderr(&out));
        Mounted(&place)
    };
    let log_has = |what: &str| {
        wait(&place, what, || {
            let log = fs::read_to_string(place.path("log")).unwrap_or_default();
            log.contains(what)
        });
    };
    server.take_requests();
    let mounted = mount("c0", &[]);
    log_has("in 2 ranges");
    let is_of_referrer = |path: &str| path.contains("referrers") || path.contains("sha256-");
    let requests = server.take_requests();
    let of_referrers: Vec<_> = requests
        .iter()
        .filter(|r| is_of_referrer(&r.path))
        .collect();
    assert!(of_referrers.is_empty(), "{of_referrers:?}");
    place.unmount("mnt");
    drop(mounted);
    // Whatever the manifest states, the bytes are right.
    let far = "tuff profile 1\n1 1 18446744073709551615 18446744073709551615 /dir0/file0\n1 1 4096 1 /../x\n";
    let long = format!("tuff profile 1\n{}", "1 1 0 1 /dir0/file0\n".repeat(4000));
    let damaged = "tuff profile 1\n1 1 /dir0/file0\n";
    for (number, lie) in [json!(far), json!(long), json!(damaged), json!(5), json!("")]
        .into_iter()
        .enumerate()
    {
        let mut changed = manifest.clone();
        changed["annotations"]["vnd.tuff.profile"] = lie;
        let media = "application/vnd.oci.image.manifest.v1+json";
        registry.add_manifest("team/app", "v1", media, changed.to_string().as_bytes());
        let mounted = mount(&format!("d{number}"), &[]);
        for n in [0, 3, 5, 17] {
            let path = format!("mnt/dir{}/file{n}", n % 7);
            assert!(fs::read(place.path(&path)).unwrap() == content(n), "{path}");
        }
        place.unmount("mnt");
        drop(mounted);
    }
}

#[test]
fn a_filled_image_needs_no_server() {
    if !can_mount() {
        return;
    }
    let place = Place::new("remote-filled");
    scattered_image(&place);
    let server = serve(&place);
    fs::create_dir(place.path("mnt")).unwrap();
    let args = ["mount", "-v", "--log", "log", "--fill", "IMAGE", "mnt"];
    let out = run(&place, &server.url("/i"), &args);
    assert_eq!(code(&out), 0, "{}", stderr(&out));
    let mounted = Mounted(&place);
    wait(&place, "fill", || {
        counter(&place, "remote_present_bytes") == counter(&place, "remote_size_bytes")
    });
    wait(&place, "log", || {
        let log = fs::read_to_string(place.path("log")).unwrap_or_default();
        log.contains("the whole image is in the cache")
    });
    server.stop();
    for n in 0..FILES {
        let path = format!("mnt/dir{}/file{n}", n % 7);
        assert!(fs::read(place.path(&path)).unwrap() == content(n), "{path}");
    }
    place.unmount("mnt");
    drop(mounted);
}

#[test]
fn readers_see_right_bytes_while_the_image_fills_and_the_server_fails() {
    if !can_mount() {
        return;
    }
    let place = Place::new("remote-readers");
    scattered_image(&place);
    let (bytes, rng) = (fs::read(place.path("i")).unwrap(), Mutex::new(Rng::new(7)));
    let server = Server::start(move |request| {
        let right = Answer::object(request, &bytes, "\"v1\"");
        match rng.lock().unwrap().below(12) {
            0 => Answer::status(503).with("Retry-After", 0),
            1 => Answer::status(0),
            2 => Answer {
                cut: Some(right.body.len() / 3),
                ..right
            },
            _ => right,
        }
    });
    fs::create_dir(place.path("mnt")).unwrap();
    // A cache that is too small for the image is evicted from under the readers.
    for cache_max in ["1G", "10M"] {
        let args = ["mount", "--log", "log", "--fill", "--cache-max", cache_max];
        let options = ["--cache-dir", cache_max, "IMAGE", "mnt"];
        let out = run(&place, &server.url("/i"), &[&args[..], &options].concat());
        assert_eq!(code(&out), 0, "{}", stderr(&out));
        let mounted = Mounted(&place);
        std::thread::scope(|scope| {
            for reader in 0..8 {
                let place = &place;
                scope.spawn(move || {
                    for n in (0..FILES).map(|n| (n * 7 + reader * 75) % FILES) {
                        let path = format!("mnt/dir{}/file{n}", n % 7);
                        assert!(fs::read(place.path(&path)).unwrap() == content(n), "{path}");
                    }
                });
            }
        });
        place.unmount("mnt");
        drop(mounted);
    }
}

#[test]
fn a_fill_that_has_no_room_says_so() {
    if !can_mount() {
        return;
    }
    let place = Place::new("remote-room");
    scattered_image(&place);
    let server = serve(&place);
    fs::create_dir(place.path("mnt")).unwrap();
    let args = [
        "mount",
        "--log",
        "log",
        "--fill",
        "--cache-max",
        "8M",
        "IMAGE",
        "mnt",
    ];
    let out = run(&place, &server.url("/i"), &args);
    assert_eq!(code(&out), 0, "{}", stderr(&out));
    let mounted = Mounted(&place);
    let expected = format!("{}: the background fill stops: ", server.url("/i"));
    wait(&place, "log", || {
        let log = fs::read_to_string(place.path("log")).unwrap_or_default();
        log.contains(&expected)
    });
    read_some(&place);
    place.unmount("mnt");
    drop(mounted);
}

#[test]
fn a_local_image_is_not_prefetched() {
    let place = Place::with_image("remote-local");
    fs::create_dir(place.path("mnt")).unwrap();
    for args in [
        &["mount", "--fill", "i", "mnt"][..],
        &["mount", "--prefetch", "p", "i", "mnt"],
        &["mount", "--fill-rate", "1M", "i", "mnt"],
        &["mount", "--fill", "--fill-rate", "0", "file:///i", "mnt"],
    ] {
        assert_eq!(code(&place.run(args)), 2, "{args:?}");
    }
}

/// Page of the counters of a mount.
fn metrics(port: u16) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).unwrap();
    page
}

/// Command lines of all running `tuff` processes. Those of other programs may contain anything.
fn command_lines() -> String {
    let program = fs::canonicalize(env!("CARGO_BIN_EXE_tuff")).unwrap();
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let ours = processes
        .filter(|entry| fs::read_link(entry.path().join("exe")).is_ok_and(|path| path == program));
    ours.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok())
        .map(|line| String::from_utf8_lossy(&line).into_owned() + "\n")
        .collect()
}

#[test]
fn credentials_appear_nowhere_and_files_only_in_the_cache() {
    if !can_mount() {
        return;
    }
    let place = Place::with_image("remote-secrets");
    fs::create_dir(place.path("bucket")).unwrap();
    fs::rename(place.path("i"), place.path("bucket/i")).unwrap();
    let server = serve(&place);
    fs::create_dir(place.path("mnt")).unwrap();
    let port = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let names = || {
        let entries = fs::read_dir(&place.0).unwrap();
        let mut names: Vec<_> = entries.map(|e| e.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let mut expected = names();
    expected.extend(["kept".into(), "log".into()]);
    expected.sort();
    let (address, cache) = (format!("127.0.0.1:{port}"), "kept");
    let out = place
        .command(&[
            "mount",
            "-v",
            "--fill",
            "--log",
            "log",
            "--fetch-timeout",
            "1",
        ])
        .args(["--metrics", &address, "--cache-dir", cache])
        .args(["s3://bucket/i", "mnt"])
        .env("AWS_ENDPOINT_URL", format!("http://{}", server.host()))
        .env("AWS_ACCESS_KEY_ID", "VERYPUBLIC")
        .env("AWS_SECRET_ACCESS_KEY", "verysecret")
        .env("AWS_SESSION_TOKEN", "verysecrettoken")
        .output()
        .unwrap();
    assert_eq!(code(&out), 0, "{}", stderr(&out));
    let mounted = Mounted(&place);
    wait(&place, "fill", || {
        counter(&place, "remote_present_bytes") == counter(&place, "remote_size_bytes")
    });
    // Errors, too: what is read next is not in the cache.
    server.stop();
    for entry in fs::read_dir(place.path(cache)).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "state") {
            fs::write(path, "").unwrap();
        }
    }
    let _ = fs::read(place.path("mnt/dir/text"));
    let stats = place.run(&["stats", "mnt"]);
    let message = [
        String::from_utf8(stats.stdout).unwrap(),
        stderr(&out),
        metrics(port),
        command_lines(),
        fs::read_to_string(place.path("log")).unwrap_or_default(),
        fs::read_to_string("/proc/self/mounts").unwrap(),
    ];
    for text in &message {
        assert!(!text.contains("verysecret"), "{text}");
        assert!(!text.contains("Signature"), "{text}");
    }
    assert!(
        message[2].contains("tuff_image_remote_size_bytes"),
        "{}",
        message[2]
    );
    assert!(message[3].contains("s3://bucket/i"), "{}", message[3]);
    let out = Command::new("umount")
        .arg("-l")
        .arg(place.path("mnt"))
        .output();
    assert!(out.unwrap().status.success());
    drop(mounted);
    // The mount point itself, and nothing else, was there before.
    assert_eq!(names(), expected);
}
