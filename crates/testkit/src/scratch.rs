//! Temporary directories of tests.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Temporary directory, removed when the value is dropped, including directories that are not writable.
pub struct Scratch(PathBuf);

impl Scratch {
    /// Creates a directory whose name contains `name`.
    pub fn new(name: &str) -> Self {
        let mut n = 0;
        loop {
            let path = std::env::temp_dir().join(format!("tuff-{name}-{}-{n}", std::process::id()));
            match std::fs::create_dir(&path) {
                Ok(()) => return Self(path),
                Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => n += 1,
                Err(e) => panic!("{}: {e}", path.display()),
            }
        }
    }

    /// Path of the directory.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Read-only directories would stop a plain removal for those who are not root.
        let _ = Command::new("chmod")
            .args(["-R", "u+rwx"])
            .arg(&self.0)
            .output();
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
