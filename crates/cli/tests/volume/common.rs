//! Runs the binary in a directory with two volumes, and on a mounted one.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output};
use std::time::Duration;
use tuff_testkit::program;

pub(crate) fn tuff(dir: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tuff"))
        .current_dir(dir)
        .arg("volume")
        .args(args)
        .output()
        .unwrap()
}

/// Runs a verb that must succeed. Returns its output.
pub(crate) fn good(dir: &Path, args: &[&str]) -> Vec<u8> {
    let out = tuff(dir, args);
    assert!(
        out.status.success(),
        "{args:?}: {}",
        String::from_utf8_lossy(&out.stderr)
    );
    out.stdout
}

/// Runs a verb that must fail. Returns its exit code and its one-line message.
pub(crate) fn bad(dir: &Path, args: &[&str]) -> (i32, String) {
    let out = tuff(dir, args);
    let message = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(message.lines().count(), 1, "{args:?}: {message}");
    (out.status.code().unwrap_or(-1), message)
}

/// Runs another program, again while a mount is busy. Returns whether it succeeded, and what it printed.
pub(crate) fn run(dir: &Path, command: &str, args: &[&str]) -> (bool, String) {
    let out = program::retry_busy(Command::new(command).current_dir(dir).args(args));
    let text = [out.stdout, out.stderr].concat();
    let text = String::from_utf8_lossy(&text).trim().to_owned();
    (out.status.success(), text)
}

pub(crate) fn json(bytes: &[u8]) -> serde_json::Value {
    serde_json::from_slice(bytes).unwrap()
}

pub(crate) struct Place(pub(crate) PathBuf);

impl Place {
    /// Creates a directory with a small tree in `src`, a volume in zone files `v` and one in a file `f`.
    pub(crate) fn new(name: &str) -> Self {
        let dir = tuff_testkit::unused_path(&format!("cli-volume-{name}"));
        fs::create_dir_all(dir.join("src/sub")).unwrap();
        fs::write(dir.join("src/hello"), "hello, volume\n".repeat(1000)).unwrap();
        fs::hard_link(dir.join("src/hello"), dir.join("src/again")).unwrap();
        std::os::unix::fs::symlink("hello", dir.join("src/link")).unwrap();
        let sparse = fs::File::create(dir.join("src/sub/sparse")).unwrap();
        sparse.set_len(5 << 20).unwrap();
        fs::write(dir.join("src/sub").join("n".repeat(200)), "long").unwrap();
        good(&dir, &["create", "v", "-s", "64M"]);
        good(&dir, &["create", "f", "--file", "-s", "64M"]);
        Self(dir)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Mounted volume. Dropping it kills the server, like a crash, and removes the mount.
pub(crate) struct Mounted(pub(crate) PathBuf, Child);

impl Mounted {
    /// Mounts `v` of a place on `m`. Returns `None` if that is not possible.
    pub(crate) fn new(place: &Place) -> Option<Self> {
        Self::with(place, &[])
    }

    /// Like [`new`](Self::new), with more options of `volume mount`.
    pub(crate) fn with(place: &Place, options: &[&str]) -> Option<Self> {
        Self::of_source(place, "v", options)
    }

    /// Like [`with`](Self::with), of another volume.
    pub(crate) fn of_source(place: &Place, source: &str, options: &[&str]) -> Option<Self> {
        Self::on(place, source, "m", options)
    }

    /// Like [`of`](Self::of), on another directory.
    pub(crate) fn on(place: &Place, source: &str, on: &str, options: &[&str]) -> Option<Self> {
        if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
            tuff_testkit::skipped("mounting needs root and /dev/fuse");
            return None;
        }
        let dir = place.0.join(on);
        let _ = fs::create_dir(&dir);
        let mut child = Command::new(env!("CARGO_BIN_EXE_tuff"))
            .current_dir(&place.0)
            .args(["volume", "mount", "-f", source, on])
            .args(options)
            .spawn()
            .unwrap();
        let outside = fs::metadata(&place.0).unwrap().dev();
        while fs::metadata(&dir).is_ok_and(|m| m.dev() == outside) {
            assert!(child.try_wait().unwrap().is_none(), "the server ended");
            std::thread::sleep(Duration::from_millis(10));
        }
        Some(Self(dir, child))
    }

    /// Process id of the server.
    pub(crate) fn server(&self) -> u32 {
        self.1.id()
    }

    /// Returns true while the server runs.
    pub(crate) fn is_served(&mut self) -> bool {
        self.1.try_wait().unwrap().is_none()
    }

    /// Waits for the end of the server.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        self.1.wait().unwrap()
    }

    /// Unmounts cleanly; the server must exit with 0.
    pub(crate) fn end(mut self) {
        let out = program::retry_busy(Command::new("umount").arg(&self.0));
        assert!(
            out.status.success(),
            "{}",
            String::from_utf8_lossy(&out.stderr)
        );
        assert!(self.1.wait().unwrap().success());
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = self.1.kill();
        let _ = self.1.wait();
        let _ = Command::new("umount").arg("-l").arg(&self.0).output();
    }
}
