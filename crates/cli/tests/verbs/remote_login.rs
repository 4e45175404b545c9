//! Mounts and servers that outlive their logins.

use crate::common::{Place, code, stderr};
use crate::kernel_remote::{mounts_at, wait_for};
use crate::mount::can_mount;
use serde_json::json;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tuff_testkit::Rng;
use tuff_testkit::http::{Answer, Server};
use tuff_testkit::program;
use tuff_testkit::registry::digest;

/// Time for which a password and its tokens are good.
const LIFE: Duration = Duration::from_millis(1500);

/// Number of expirations that a reader outlives.
const EXPIRATIONS: u32 = 3;

const SIZE: usize = 24 << 20;

/// Registry whose password changes, and the file with the login.
struct Registry {
    server: Server,
    logins: PathBuf,
    content: Vec<u8>,
    /// Number of passwords that were accepted, one after the other.
    accepted: Arc<AtomicU32>,
}

pub(crate) fn base64(text: &str) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let part = |part: &[u8]| -> String {
        let bits = part
            .iter()
            .fold(0u32, |bits, byte| bits << 8 | u32::from(*byte));
        let bits = bits << (8 * (3 - part.len()));
        let digit = |at: usize| match at <= part.len() {
            true => char::from(DIGITS[(bits >> (18 - 6 * at) & 63) as usize]),
            false => '=',
        };
        (0..4).map(digit).collect()
    };
    text.as_bytes().chunks(3).map(part).collect()
}

/// Replaces the login as a program does that renews it. A credential helper knows it, too.
fn write_login(logins: &Path, host: &str, number: u32) {
    let secret = logins.with_file_name("secret");
    let new = secret.with_extension("new");
    fs::write(&new, format!("p{number}")).unwrap();
    fs::rename(new, secret).unwrap();
    let auth = base64(&format!("AWS:p{number}"));
    let text = json!({"auths": {host: {"auth": auth}}}).to_string();
    let new = logins.with_extension("new");
    fs::write(&new, text).unwrap();
    fs::rename(new, logins).unwrap();
}

impl Registry {
    /// Builds an image of one incompressible file, and starts a registry that has it as `app:latest`.
    fn start(place: &Place) -> Self {
        let mut rng = Rng::new(5);
        let content: Vec<u8> = (0..SIZE / 8)
            .flat_map(|_| rng.draw().to_le_bytes())
            .collect();
        fs::create_dir(place.path("tree")).unwrap();
        fs::write(place.path("tree/data"), &content).unwrap();
        let out = place.run(&["build", "-q", "--verity", "tree", "layer"]);
        assert_eq!(code(&out), 0, "{}", stderr(&out));
        let verity = &place.json(&["verity", "show", "--json", "layer"])[0];
        let image = fs::read(place.path("layer")).unwrap();
        let config = json!({"rootfs": {"diff_ids": [digest(&image)]}})
            .to_string()
            .into_bytes();
        let manifest = json!({
            "config": {"digest": digest(&config)},
            "layers": [{
                "mediaType": "application/vnd.erofs.layer.v1",
                "digest": digest(&image),
                "size": image.len(),
                "annotations": {
                    "org.erofs.dmverity.root_digest": verity["root_hash"],
                    "org.erofs.dmverity.hash_offset": verity["hash_offset"].to_string(),
                },
            }],
        });
        let manifest = manifest.to_string().into_bytes();
        let logins = place.path("logins.json");
        let accepted = Arc::new(AtomicU32::new(0));
        let (file, last) = (logins.clone(), Arc::clone(&accepted));
        let start = Instant::now();
        let written = AtomicU32::new(0);
        let server = Server::start(move |request| {
            let host = request.headers["host"].clone();
            let number = (start.elapsed().as_millis() / LIFE.as_millis()) as u32;
            let sent = request.headers.get("authorization");
            if request.path.starts_with("/token") {
                if sent != Some(&format!("Basic {}", base64(&format!("AWS:p{number}")))) {
                    // The login is renewed a little after it has expired.
                    if written.swap(number, Ordering::SeqCst) != number {
                        let file = file.clone();
                        std::thread::spawn(move || {
                            std::thread::sleep(Duration::from_millis(300));
                            write_login(&file, &host, number);
                        });
                    }
                    return Answer::status(401);
                }
                last.fetch_max(number, Ordering::SeqCst);
                return Answer {
                    body: format!(r#"{{"token":"t{number}"}}"#).into_bytes(),
                    ..Answer::status(200)
                };
            }
            if sent != Some(&format!("Bearer t{number}")) {
                let challenge = format!("Bearer realm=\"http://{host}/token\"");
                return Answer::status(401).with("WWW-Authenticate", challenge);
            }
            let path = request.path.strip_prefix("/v2/app/").unwrap_or_default();
            match path.split_once('/') {
                Some(("manifests", _)) => Answer {
                    body: manifest.clone(),
                    ..Answer::status(200)
                },
                Some(("blobs", name)) if name == digest(&config) => Answer {
                    body: config.clone(),
                    ..Answer::status(200)
                },
                Some(("blobs", name)) if name == digest(&image) => {
                    Answer::object(request, &image, "")
                }
                _ => Answer::status(404),
            }
        });
        write_login(&logins, &server.host(), 0);
        Self {
            server,
            logins,
            content,
            accepted,
        }
    }

    /// Names a credential helper in a file of logins, and returns the file and the directory of the helper.
    fn helper(&self, place: &Place) -> (PathBuf, PathBuf) {
        let bin = place.path("bin");
        fs::create_dir(&bin).unwrap();
        let script = format!(
            "#!/bin/sh\nprintf '{{\"Username\":\"AWS\",\"Secret\":\"%s\"}}' \"$(cat {})\"\n",
            place.path("secret").display()
        );
        program::script(bin.join("docker-credential-test"), &script);
        let logins = place.path("helper.json");
        let text = json!({"credHelpers": {self.server.host(): "test"}});
        fs::write(&logins, text.to_string()).unwrap();
        (logins, bin)
    }

    fn url(&self) -> String {
        format!("oci://{}/app", self.server.host())
    }

    /// Reads parts of a file that are not in a cache, until the login has expired several times. `bytes`: the file.
    fn assert_reads(&self, file: &Path, bytes: &[u8]) {
        let first = self.accepted.load(Ordering::SeqCst);
        let file = File::open(file).unwrap();
        // From the end on, so that nothing is read ahead.
        let mut parts = (0..SIZE / (1 << 20)).rev();
        while self.accepted.load(Ordering::SeqCst) < first + EXPIRATIONS {
            let at = parts.next().expect("enough parts for all expirations") << 20;
            let mut read = vec![0; 4096];
            file.read_exact_at(&mut read, at as u64).unwrap();
            assert!(read == bytes[at..at + 4096], "{at}");
            std::thread::sleep(LIFE / 4);
        }
    }
}

/// Reads through a mount whose logins are in a file, or come from a credential helper.
fn assert_mount_outlives(name: &str, has_helper: bool) {
    if !can_mount() {
        return;
    }
    let place = Place::new(name);
    let registry = Registry::start(&place);
    fs::create_dir(place.path("mnt")).unwrap();
    let mut mount = place.command(&["mount", &registry.url(), "mnt"]);
    mount
        .env("XDG_CACHE_HOME", place.path("cache"))
        .env("REGISTRY_AUTH_FILE", &registry.logins);
    if has_helper {
        let (logins, bin) = registry.helper(&place);
        let path = std::env::var("PATH").unwrap_or_default();
        mount
            .env("REGISTRY_AUTH_FILE", logins)
            .env("PATH", format!("{}:{path}", bin.display()));
    }
    let out = mount.output().unwrap();
    assert_eq!(code(&out), 0, "{}", stderr(&out));
    let mounted = Mounted(&place, "mnt");
    registry.assert_reads(&place.path("mnt/data"), &registry.content);
    drop(mounted);
}

#[test]
fn a_mount_outlives_its_logins() {
    assert_mount_outlives("login-mount", false);
}

#[test]
fn a_mount_asks_its_credential_helper_again() {
    assert_mount_outlives("login-helper", true);
}

/// Mount that is detached when a test fails.
struct Mounted<'a>(&'a Place, &'a str);

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let path = self.0.path(self.1);
        let _ = Command::new("umount").arg("-l").arg(path).output();
    }
}

#[test]
fn a_server_of_layers_outlives_its_logins() {
    if !can_mount() {
        return;
    }
    let place = Place::new("login-serve");
    let registry = Registry::start(&place);
    fs::create_dir(place.path("into")).unwrap();
    let url = registry.url();
    let args = [
        "serve",
        "-f",
        "--into",
        "into",
        "--store",
        "store",
        "--fill-rate",
        "0",
    ];
    let mut serve = place.command(&args);
    let mut child = serve
        .arg(&url)
        .env("XDG_CACHE_HOME", place.path("cache"))
        .env("REGISTRY_AUTH_FILE", &registry.logins)
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mounted = Mounted(&place, "into");
    let into = fs::canonicalize(place.path("into")).unwrap();
    wait_for("the mount", || {
        assert!(child.try_wait().unwrap().is_none());
        (!mounts_at(&into).is_empty()).then_some(())
    });
    let image = fs::read(place.path("layer")).unwrap();
    let id = digest(&image);
    let id = id.strip_prefix("sha256:").unwrap();
    let file = into.join(format!("sha256/{}/{id}.erofs", &id[..2]));
    registry.assert_reads(&file, &image);
    drop(mounted);
    wait_for("the end of the server", || child.try_wait().unwrap());
}
