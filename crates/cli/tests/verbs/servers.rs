//! Uploads to a real registry and a real object store, which `.ci/servers` builds.

use crate::common::{Place, code, stderr};
use crate::push::{assert_reads_same, good, run};
use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tuff_testkit::skipped;

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

#[test]
fn versitygw_takes_and_gives_images() {
    let place = images("servers-bucket");
    fs::create_dir_all(place.path("store/bucket")).unwrap();
    let Some(server) = start("versitygw", |command, port| {
        command
            .env("ROOT_ACCESS_KEY", "test")
            .env("ROOT_SECRET_KEY", "testtest");
        command.args(["--port", &format!("127.0.0.1:{port}"), "posix"]);
        command.arg(place.path("store"));
    }) else {
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
