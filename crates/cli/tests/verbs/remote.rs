//! Images behind URLs: the same output as from the file, and one clear error each.

use crate::common::{Place, code, stderr};
use crate::mount::can_mount;
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;
use tuff_testkit::http::{Answer, Server};

/// Server of the files in a directory.
pub(crate) fn serve(place: &Place) -> Server {
    let dir = place.0.clone();
    Server::start(move |request| {
        let path = request.path.split('?').next().unwrap_or_default();
        let bytes = fs::read(dir.join(path.trim_start_matches('/')));
        bytes.map_or(Answer::status(404), |bytes| {
            Answer::object(request, &bytes, "\"v1\"")
        })
    })
}

/// Runs the command with a cache in the directory. Words `IMAGE` are replaced.
pub(crate) fn run(place: &Place, image: &str, args: &[&str]) -> Output {
    let args: Vec<&str> = args
        .iter()
        .map(|arg| if *arg == "IMAGE" { image } else { arg })
        .collect();
    place
        .command(&args)
        .env("XDG_CACHE_HOME", place.path("cache"))
        .output()
        .unwrap()
}

#[test]
fn verbs_print_the_same_for_a_url_and_for_a_file() {
    let place = Place::with_image("remote-same");
    let server = serve(&place);
    let urls = [
        server.url("/i"),
        format!("file://{}", place.path("i").display()),
    ];
    for url in &urls {
        for args in [
            &["info", "IMAGE"][..],
            &["info", "--files", "--json", "IMAGE"],
            &["ls", "-lR", "IMAGE"],
            &["cat", "IMAGE", "dir/text", "many/copy", "sparse"],
            &["stat", "IMAGE", "hello"],
            &["stat", "--extents", "IMAGE", "dir/text"],
            &["dump", "IMAGE"],
            &["tar", "IMAGE", "-"],
            &["check", "-q", "IMAGE"],
            &["diff", "IMAGE", "i"],
        ] {
            let (local, remote) = (run(&place, "i", args), run(&place, url, args));
            assert_eq!(code(&local), 0, "{args:?}: {}", stderr(&local));
            assert_eq!(code(&remote), 0, "{args:?}: {}", stderr(&remote));
            assert!(local.stdout == remote.stdout, "{args:?} of {url}");
        }
        let out = run(
            &place,
            url,
            &["extract", "-q", "--no-owner", "--overwrite", "IMAGE", "out"],
        );
        assert!(code(&out) <= 1, "{}", stderr(&out));
        assert_eq!(
            fs::read(place.path("out/dir/text")).unwrap(),
            crate::common::text().as_bytes()
        );
    }
}

#[test]
fn a_root_hash_covers_what_is_fetched() {
    let place = Place::with_image("remote-root");
    let out = place.json(&["verity", "add", "--json", "i"]);
    let root = out[0]["root_hash"].as_str().unwrap().to_owned();
    let server = serve(&place);
    let check = |root: &str, image: &str| {
        run(
            &place,
            &server.url(image),
            &["check", "-q", "--root-hash", root, "IMAGE"],
        )
    };
    let out = check(&root, "/i");
    assert_eq!(code(&out), 0, "{}", stderr(&out));
    let out = check(&"1".repeat(64), "/i");
    assert_eq!(code(&out), 3);
    assert!(stderr(&out).contains("root hash"), "{}", stderr(&out));
    // One byte of each block behind the superblock.
    let mut bytes = fs::read(place.path("i")).unwrap();
    bytes
        .iter_mut()
        .skip(4096 + 5)
        .step_by(4096)
        .for_each(|b| *b ^= 1);
    fs::write(place.path("damaged"), bytes).unwrap();
    let out = run(
        &place,
        &server.url("/damaged"),
        &["cat", "--verity", &root, "IMAGE", "dir/text", "sparse"],
    );
    assert_eq!(code(&out), 3, "{}", stderr(&out));
}

#[test]
fn failures_are_one_sentence_without_credentials() {
    let place = Place::with_image("remote-errors");
    let server = serve(&place);
    let host = server.host();
    let plain = Server::start(|_| Answer::status(200));
    let cases = [
        (
            5,
            format!("http://user:secret@{host}/none?sig=secret"),
            "not found",
        ),
        (
            5,
            "http://user:secret@127.0.0.1:1/i".to_owned(),
            "cannot connect",
        ),
        (5, format!("oci://{host}/team/app"), "not found"),
        (4, plain.url("/i"), "names no version"),
        (
            3,
            server.url("/hello"),
            "is a text file, not an EROFS image",
        ),
        (2, "ftp://user:secret@h/i".to_owned(), "expected https://"),
        (
            2,
            "s3://bucket".to_owned(),
            "s3://bucket: expected s3://BUCKET/KEY",
        ),
        (2, "oci://h/N".to_owned(), "oci://h/N: expected oci://"),
        (2, "https://user:secret@".to_owned(), "the URL of the image"),
        (5, "file:///none".to_owned(), "No such file"),
    ];
    for (expected, url, words) in cases {
        let out = run(&place, &url, &["ls", "--fetch-timeout", "1", "IMAGE"]);
        let message = stderr(&out);
        assert_eq!(code(&out), expected, "{url}: {message}");
        assert!(message.contains(words), "{url}: {message}");
        assert_eq!(message.lines().count(), 1, "{message}");
        assert!(!message.contains("secret"), "{message}");
    }
}

/// Image `i` of files that do not compress, about 6 MiB.
fn random_image(place: &Place) {
    fs::create_dir_all(place.path("tree")).unwrap();
    let mut rng = tuff_testkit::Rng::new(1);
    for name in ["a", "b"] {
        let bytes: Vec<u8> = (0..3 << 20).map(|_| rng.draw() as u8).collect();
        fs::write(place.path("tree").join(name), bytes).unwrap();
    }
    let out = place.run(&["build", "-q", "tree", "i"]);
    assert_eq!(code(&out), 0, "{}", stderr(&out));
}

#[test]
fn a_killed_process_leaves_a_usable_cache() {
    let place = Place::new("remote-kill");
    random_image(&place);
    let (dir, delay) = (place.0.clone(), Duration::from_millis(5));
    let server = Server::start(move |request| {
        let bytes = fs::read(dir.join("i")).unwrap();
        Answer {
            delay,
            ..Answer::object(request, &bytes, "\"v1\"")
        }
    });
    let url = server.url("/i");
    // A small cache is evicted from all the time, too.
    for cache in ["1M", "1G"] {
        let args = ["cat", "--cache-max", cache, &url, "a", "b"];
        for wait in 0..12 {
            let mut command = place.command(&args);
            command
                .env("XDG_CACHE_HOME", place.path("cache"))
                .stdout(Stdio::null());
            let mut first = command.spawn().unwrap();
            let mut second = command.spawn().unwrap();
            std::thread::sleep(Duration::from_millis(wait * 7));
            first.kill().unwrap();
            first.wait().unwrap();
            assert!(second.wait().unwrap().success());
        }
        let out = run(&place, &url, &args);
        assert_eq!(code(&out), 0, "{}", stderr(&out));
        let expected = ["a", "b"].map(|name| fs::read(place.path("tree").join(name)).unwrap());
        assert!(out.stdout == expected.concat());
    }
}

/// Unmounts on drop, also after a failed assertion.
pub(crate) struct Mounted<'a>(pub(crate) &'a Place);

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount")
            .arg("-l")
            .arg(self.0.path("mnt"))
            .output();
    }
}

/// Mounts the image at `url` on `mnt`, with an option of the cache.
fn mount<'a>(place: &'a Place, url: &str, [option, value]: [&str; 2]) -> Mounted<'a> {
    fs::create_dir(place.path("mnt")).unwrap();
    let args = [
        "mount",
        option,
        value,
        "--log",
        "log",
        "--fetch-timeout",
        "1",
        "IMAGE",
        "mnt",
    ];
    // The command waits for the end of standard output, which the server in the background closes.
    let out = run(place, url, &args);
    assert_eq!(code(&out), 0, "{}", stderr(&out));
    Mounted(place)
}

#[test]
fn a_mount_reads_what_the_file_has_and_ends_without_its_server() {
    if !can_mount() {
        return;
    }
    let place = Place::with_image("remote-mount");
    let server = serve(&place);
    let url = format!("http://user:secret@{}/i", server.host());
    let mounted = mount(&place, &url, ["--cache-dir", "kept"]);
    // An image that is complete already is mounted by the kernel from its file in the cache.
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(
        mounts.contains(&server.url("/i")) || mounts.contains("/proc/self/fd/"),
        "{mounts}"
    );
    assert!(!mounts.contains("secret"), "{mounts}");
    let read = |name: &str| fs::read(place.path("mnt").join(name));
    assert_eq!(read("dir/text").unwrap(), crate::common::text().as_bytes());
    let out = place.run(&["diff", "i", "mnt"]);
    assert!(code(&out) <= 1, "{}", stderr(&out));
    server.stop();
    place.unmount("mnt");
    drop(mounted);
    let log = fs::read_to_string(place.path("log")).unwrap_or_default();
    assert!(!log.contains("secret"), "{log}");
}

#[test]
fn a_mount_goes_on_with_what_it_has_where_the_server_is_out_of_reach() {
    if !can_mount() {
        return;
    }
    let place = Place::with_image("remote-offline");
    let server = serve(&place);
    let url = server.url("/i");
    let args = ["mount", "--log", "log", "IMAGE", "mnt"];
    fs::create_dir(place.path("mnt")).unwrap();
    let start = |warnings: usize| {
        let out = run(&place, &url, &args);
        assert_eq!(code(&out), 0, "{}", stderr(&out));
        let mounted = Mounted(&place);
        let text = fs::read(place.path("mnt/dir/text")).unwrap();
        assert!(text == crate::common::text().as_bytes());
        place.unmount("mnt");
        drop(mounted);
        let text = stderr(&out);
        assert_eq!(text.lines().count(), warnings, "{text}");
        text
    };
    start(0);
    server.stop();
    let warning = start(1);
    let expected = format!("tuff: warning: {url}: the server cannot be reached (");
    assert!(warning.starts_with(&expected), "{warning}");
    // Other verbs give no old answer for a new one.
    let out = run(&place, &url, &["ls", "--fetch-timeout", "1", "IMAGE"]);
    assert_eq!(code(&out), 5, "{}", stderr(&out));
}

#[test]
fn a_part_that_cannot_be_fetched_is_an_io_error() {
    if !can_mount() {
        return;
    }
    let place = Place::new("remote-eio");
    random_image(&place);
    let server = serve(&place);
    let mounted = mount(&place, &server.url("/i"), ["--cache-max", "256K"]);
    server.stop();
    let read = |name: &str| fs::read(place.path("mnt").join(name));
    let failed: Vec<_> = ["a", "b"]
        .map(read)
        .into_iter()
        .filter_map(Result::err)
        .collect();
    assert!(!failed.is_empty());
    for e in failed {
        assert_eq!(e.raw_os_error(), Some(5));
    }
    place.unmount("mnt");
    drop(mounted);
    let log = fs::read_to_string(place.path("log")).unwrap();
    assert!(log.contains(&server.url("/i")), "{log}");
    assert!(Path::new(&place.path("cache/tuff")).exists());
}
