//! Executables that tests make, and commands that are repeated while a mount is busy.
//!
//! `install` writes executables, never the test itself: another thread that starts a process would hand it the file while it is
//! open for writing, and the kernel executes no such file ("Text file busy").

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Time after which a mount is busy for another reason.
const BUSY_MAX: Duration = Duration::from_secs(20);

/// Copies an executable, for users who cannot enter its directory.
pub fn copy(from: impl AsRef<Path>, to: impl AsRef<Path>) {
    install(from.as_ref(), to.as_ref(), "");
}

/// Creates or replaces an executable script.
pub fn script(path: impl AsRef<Path>, text: &str) {
    install(Path::new("/dev/stdin"), path.as_ref(), text);
}

/// Runs a command, again while it reports a busy mount: a process that a test in another thread starts has copies of our open
/// files until it executes its command.
pub fn retry_busy(command: &mut Command) -> Output {
    let start = Instant::now();
    loop {
        let out = command.output().unwrap();
        let is_busy = String::from_utf8_lossy(&out.stderr).contains("busy");
        if !is_busy || start.elapsed() > BUSY_MAX {
            return out;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn install(from: &Path, to: &Path, input: &str) {
    let mut install = Command::new("install")
        .args(["-m", "755"])
        .args([from, to])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = install.stdin.take().unwrap();
    stdin.write_all(input.as_bytes()).unwrap();
    drop(stdin);
    assert!(install.wait().unwrap().success(), "{}", to.display());
}
