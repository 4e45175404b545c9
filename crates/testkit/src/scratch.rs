//! Temporary directories of tests.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// Returns a path in the directory for temporary files, with `name` in it. No two calls return the same, so tests that run side
/// by side may choose equal names. What a process of an earlier run left there is removed.
pub fn unused_path(name: &str) -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let name = format!("tuff-{name}-{}-{number}", std::process::id());
    let path = std::env::temp_dir().join(name);
    let _ = std::fs::remove_dir_all(&path);
    path
}

/// Temporary directory, removed when the value is dropped, including directories that are not writable.
pub struct Scratch(PathBuf);

impl Scratch {
    /// Creates a directory whose name contains `name`.
    pub fn new(name: &str) -> Self {
        let path = unused_path(name);
        std::fs::create_dir(&path).unwrap();
        Self(path)
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
