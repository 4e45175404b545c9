//! Small filesystems in memory.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use tuff_testkit::is_root;

/// Filesystem in memory, or a directory where that cannot be mounted.
pub(super) struct Disk {
    path: PathBuf,
    is_mounted: bool,
}

impl Disk {
    pub(super) fn new(path: &Path, mib: u32) -> Self {
        fs::create_dir_all(path).unwrap();
        let mut mount = Command::new("mount");
        let mount = mount.args(["-t", "tmpfs", "-o", &format!("size={mib}M"), "none"]);
        let is_mounted = is_root() && mount.arg(path).status().is_ok_and(|s| s.success());
        Self {
            path: path.to_owned(),
            is_mounted,
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Fills the disk up to some bytes, until the value is dropped. `None` for a directory.
    pub(super) fn fill(&self, left: u64) -> Option<Filled> {
        if !self.is_mounted {
            return None;
        }
        let path = self.path.join("fill");
        let mut file = File::create(&path).unwrap();
        for len in [1 << 20, 4096, 1] {
            while file.write_all(&vec![1; len]).is_ok() {}
        }
        let len = file.metadata().unwrap().len();
        file.set_len(len.saturating_sub(left)).unwrap();
        Some(Filled(path))
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if self.is_mounted {
            // The mount ends when nothing of it is open.
            let _ = Command::new("umount").arg("-l").arg(&self.path).status();
        }
    }
}

/// File that takes the room of a disk.
pub(super) struct Filled(PathBuf);

impl Drop for Filled {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}
