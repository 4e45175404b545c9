//! Uploads to a real registry and a real object store, which `.ci/servers` builds.

use crate::common::{Place, code, stderr};
use crate::mount::can_mount;
use crate::push::{assert_reads_same, good, run};
use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tuff_testkit::content::{noise, text};
use tuff_testkit::skipped;
use tuff_testkit::tree::{assert_same, from_source, host_tree};

/// Server that ends with the value.
struct Running {
    child: Child,
    port: u16,
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Path of a server built by `.ci/servers`, where Go exists.
fn program(name: &str) -> Option<PathBuf> {
    let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/bin");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs: Vec<PathBuf> = std::env::split_paths(&path).chain([tools]).collect();
    let find = |name: &str| {
        dirs.iter()
            .map(|dir| dir.join(name))
            .find(|file| file.exists())
    };
    let found = find(name);
    if found.is_none() {
        skipped(format_args!("no {name}; .ci/servers builds it"));
    }
    found
}

/// Starts a server, and waits until it accepts connections.
fn start(name: &str, prepare: impl FnOnce(&mut Command, u16)) -> Option<Running> {
    let program = program(name)?;
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    let mut command = Command::new(program);
    prepare(&mut command, port);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let child = command.spawn().unwrap();
    let running = Running { child, port };
    let start = Instant::now();
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "{name} does not start"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
    Some(running)
}

/// Image `i` with a hash tree, and one `large` of more than one part.
fn images(name: &str) -> Place {
    let place = Place::with_image(name);
    place.text(&["verity", "add", "-q", "i"]);
    let mut rng = tuff_testkit::Rng::new(3);
    let noise: Vec<u8> = (0..20 << 20).map(|_| rng.draw() as u8).collect();
    fs::create_dir(place.path("noise")).unwrap();
    fs::write(place.path("noise/file"), noise).unwrap();
    place.text(&["build", "-q", "--verity", "noise", "large"]);
    place
}

/// Uploads and reads both images at URLs with a prefix.
fn assert_works(place: &Place, variables: &[(&str, &str)], prefix: &str, tag: &str) {
    let (small, large) = (format!("{prefix}/i{tag}"), format!("{prefix}/large{tag}"));
    for (image, url) in [("i", &small), ("large", &large)] {
        good(place, variables, &["push", "-q", image, url]);
        good(place, variables, &["pull", "-q", "--force", url, "copy"]);
        assert!(fs::read(place.path("copy")).unwrap() == fs::read(place.path(image)).unwrap());
        // The second time there is nothing to send.
        let out = run(place, variables, &["push", "--json", image, url]);
        assert_eq!(code(&out), 0, "{}", stderr(&out));
        let message: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
        assert_eq!(message["layers"][0]["was_present"], true);
    }
    assert_reads_same(place, variables, &small, "i");
    let openssl = Command::new("openssl")
        .args([
            "req", "-x509", "-nodes", "-newkey", "rsa:2048", "-subj", "/CN=t",
        ])
        .args(["-keyout", "k.pem", "-out", "c.pem"])
        .current_dir(&place.0)
        .output();
    if !openssl.is_ok_and(|out| out.status.success()) {
        skipped("openssl makes no key");
        return;
    }
    good(
        place,
        variables,
        &["push", "-q", "--sign", "k.pem,c.pem", "i", &small],
    );
    good(
        place,
        variables,
        &["check", "-q", "--trust", "c.pem", &small],
    );
    let out = run(
        place,
        variables,
        &["check", "-q", "--trust", "c.pem", &large],
    );
    assert_eq!(code(&out), 6, "{}", stderr(&out));
}

#[test]
fn distribution_takes_and_gives_images() {
    let place = images("servers-registry");
    let dir = place.path("registry");
    let Some(server) = start("registry", |command, port| {
        let config = format!(
            "version: 0.1\nstorage:\n  filesystem:\n    rootdirectory: {}\nhttp:\n  addr: 127.0.0.1:{port}\n",
            dir.display()
        );
        fs::write(place.path("registry.yml"), config).unwrap();
        command.args(["serve".as_ref(), place.path("registry.yml").as_os_str()]);
        command.env("OTEL_TRACES_EXPORTER", "none");
    }) else {
        return;
    };
    assert_works(
        &place,
        &[],
        &format!("oci://127.0.0.1:{}/team", server.port),
        ":v1",
    );
}

/// Starts an object store with the bucket `bucket`.
fn bucket(place: &Place) -> Option<Running> {
    fs::create_dir_all(place.path("store/bucket")).unwrap();
    start("versitygw", |command, port| {
        command
            .env("ROOT_ACCESS_KEY", "test")
            .env("ROOT_SECRET_KEY", "testtest");
        command.args(["--port", &format!("127.0.0.1:{port}"), "posix"]);
        command.arg(place.path("store"));
    })
}

#[test]
fn versitygw_takes_and_gives_images() {
    let place = images("servers-bucket");
    let Some(server) = bucket(&place) else {
        return;
    };
    let endpoint = format!("http://127.0.0.1:{}", server.port);
    let variables = [
        ("AWS_ENDPOINT_URL", endpoint.as_str()),
        ("AWS_ACCESS_KEY_ID", "test"),
        ("AWS_SECRET_ACCESS_KEY", "testtest"),
        ("AWS_REGION", "us-east-1"),
    ];
    assert_works(&place, &variables, "s3://bucket", "");
    let wrong = [
        variables[0],
        variables[1],
        ("AWS_SECRET_ACCESS_KEY", "wrongwrong"),
    ];
    let out = run(&place, &wrong, &["push", "i", "s3://bucket/other"]);
    assert_eq!(code(&out), 5, "{}", stderr(&out));
    let message = stderr(&out);
    assert!(
        message.contains("access denied") && !message.contains("wrongwrong"),
        "{message}"
    );
}

/// A backup store in a bucket: made, used from two hosts, mounted, restored, copied to a directory, checked and pruned.
#[test]
fn versitygw_takes_and_gives_backups() {
    let place = Place::new("servers-backup");
    let Some(server) = bucket(&place) else {
        return;
    };
    let endpoint = format!("http://127.0.0.1:{}", server.port);
    let (here, other) = (place.path("here"), place.path("other"));
    let host = |cache: &Path| {
        vec![
            ("AWS_ENDPOINT_URL", endpoint.clone()),
            ("AWS_ACCESS_KEY_ID", "test".to_owned()),
            ("AWS_SECRET_ACCESS_KEY", "testtest".to_owned()),
            ("AWS_REGION", "us-east-1".to_owned()),
            ("XDG_CACHE_HOME", cache.to_str().unwrap().to_owned()),
        ]
    };
    let (here, other) = (host(&here), host(&other));
    let tuff = |variables: &[(&str, String)], args: &[&str]| {
        let variables: Vec<(&str, &str)> = variables.iter().map(|(n, v)| (*n, &**v)).collect();
        run(&place, &variables, args)
    };
    let good = |variables: &[(&str, String)], args: &[&str]| {
        let out = tuff(variables, args);
        assert_eq!(code(&out), 0, "{args:?}: {}", stderr(&out));
        String::from_utf8(out.stdout).unwrap()
    };
    fs::create_dir_all(place.path("source/dir")).unwrap();
    fs::write(place.path("source/noise"), noise(20 << 20, 1)).unwrap();
    for n in 0..300 {
        let file = place.path("source/dir").join(format!("file-{n}"));
        fs::write(file, text(1500 + n, n as u64)).unwrap();
    }
    let url = "s3://bucket/backups/all";
    let out = tuff(&here, &["store", "list", url]);
    assert!(
        code(&out) == 2 && stderr(&out).contains("no backup store"),
        "{}",
        stderr(&out)
    );
    good(&here, &["backup", "source", url]);
    fs::write(place.path("source/dir/file-7"), "edited").unwrap();
    good(
        &other,
        &["backup", "-q", "--series", "other", "source", url],
    );
    good(&here, &["backup", "-q", "source", url]);
    let list = good(&other, &["store", "list", url]);
    assert_eq!(list.lines().count(), 3, "{list}");
    good(&other, &["store", "restore", "-q", url, "restored"]);
    let real = fs::canonicalize(place.path("source")).unwrap();
    let below = |dir: &str| place.path(dir).join(real.strip_prefix("/").unwrap());
    let same = |dir: &Path| {
        let (a, b) = (host_tree(&place.path("source")), host_tree(dir));
        assert_same("the snapshot", &a, &b, from_source(&a));
    };
    same(&below("restored"));
    good(&here, &["store", "check", "--read-data", "100%", url]);
    let out = tuff(&here, &["store", "diff", url, "1", "3"]);
    assert!(
        String::from_utf8_lossy(&out.stdout).contains("file-7"),
        "{}",
        stderr(&out)
    );
    good(&other, &["store", "copy", "-q", url, "disk"]);
    place.text(&["store", "check", "--read-data", "100%", "disk"]);
    place.text(&["store", "restore", "-q", "disk", "from-disk"]);
    same(&below("from-disk"));
    if can_mount() {
        fs::create_dir(place.path("mnt")).unwrap();
        let out = tuff(&other, &["store", "mount", "--kernel", url, "mnt"]);
        assert!(
            code(&out) == 2 && stderr(&out).contains("tuff store copy"),
            "{}",
            stderr(&out)
        );
        good(&other, &["store", "mount", url, "mnt"]);
        same(&below("mnt"));
        assert!(good(&here, &["store", "list", url]).contains("pin "));
        place.unmount("mnt");
    }
    good(&here, &["store", "forget", url, "1"]);
    assert!(good(&here, &["store", "prune", url]).contains("freed"));
    // The same in an encrypted store.
    let sealed = "s3://bucket/backups/sealed";
    let key = ["-q", "--key-file", "key"];
    let with = |verb: &[&'static str], rest: &[&'static str]| [verb, &key, rest].concat();
    good(&here, &with(&["backup", "--encrypt"], &["source", sealed]));
    good(
        &other,
        &with(&["store", "restore"], &[sealed, "from-sealed"]),
    );
    same(&below("from-sealed"));
    good(
        &other,
        &with(&["store", "check", "--read-data", "100%"], &[sealed]),
    );
    let out = tuff(&here, &["store", "list", sealed]);
    assert!(
        code(&out) == 2 && stderr(&out).contains("name its key"),
        "{}",
        stderr(&out)
    );
    // Data that the object store lost is named.
    let data = fs::read_dir(place.path("store/bucket/backups/all/segments")).unwrap();
    let data = data.map(|entry| entry.unwrap().path());
    let data = data.filter(|path| path.extension().is_some_and(|end| end == "data"));
    let largest = data
        .max_by_key(|path| fs::metadata(path).unwrap().len())
        .unwrap();
    fs::remove_file(&largest).unwrap();
    let out = tuff(&here, &["store", "check", url]);
    let lines = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(
        code(&out) == 1 && lines.contains(".data: is missing"),
        "{lines}"
    );
    // Another key, and a server that is gone: one sentence and no long wait.
    let mut wrong = here.clone();
    wrong[2].1 = "wrongwrong".to_owned();
    let out = tuff(&wrong, &["backup", "-q", "source", url]);
    assert!(
        code(&out) == 5 && stderr(&out).contains("access denied"),
        "{}",
        stderr(&out)
    );
    drop(server);
}
