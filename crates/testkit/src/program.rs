//! Programs that tests make and run.
//!
//! `install` writes them, never the test itself: another thread that starts a process would hand it the file while it is open
//! for writing, and the kernel executes no such file ("Text file busy").

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// Copies an executable, for users who cannot enter its directory.
pub fn copy(from: impl AsRef<Path>, to: impl AsRef<Path>) {
    install(from.as_ref(), to.as_ref(), "");
}

/// Creates or replaces an executable script.
pub fn script(path: impl AsRef<Path>, text: &str) {
    install(Path::new("/dev/stdin"), path.as_ref(), text);
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
