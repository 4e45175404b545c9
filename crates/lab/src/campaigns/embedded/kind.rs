//! Modules and programs that a guest needs for a filesystem.

use crate::engines::filesystem::Filesystem;
use crate::measure::helper;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// Cleaner of NILFS2, a process beside the mount.
const CLEANER: &str = "/usr/sbin/nilfs_cleanerd";
/// Age in seconds from which the cleaner may remove a checkpoint. Its default of an hour is longer than the test.
const CLEANED_AFTER: &str = "1";
/// Time limit of the start of the cleaner.
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// All filesystems in the order of tables.
pub const KINDS: [Filesystem; 7] = [
    Filesystem::Erofs,
    Filesystem::Squashfs,
    Filesystem::Ext4,
    Filesystem::F2fs,
    Filesystem::Nilfs2,
    Filesystem::Jffs2,
    Filesystem::Ubifs,
];

/// Returns the modules of a filesystem and of algorithms that it asks for by name, and the programs that the guest needs for it.
fn needs(kind: Filesystem) -> (&'static str, &'static str) {
    match kind {
        Filesystem::Erofs => ("crc32c_generic", ""),
        Filesystem::Squashfs => ("squashfs", ""),
        Filesystem::Ext4 => (
            "crc32c_generic ext4",
            "/sbin/mkfs.ext4 /sbin/e2fsck /etc/mke2fs.conf",
        ),
        Filesystem::F2fs => (
            "crc32_generic crc32c_generic f2fs",
            "/sbin/mkfs.f2fs /sbin/fsck.f2fs",
        ),
        Filesystem::Nilfs2 => (
            "nilfs2",
            "/sbin/mkfs.nilfs2 /usr/sbin/nilfs_cleanerd /etc/nilfs_cleanerd.conf",
        ),
        Filesystem::Jffs2 => ("jffs2", "/usr/sbin/flash_erase"),
        Filesystem::Ubifs => (
            "crc32_generic lzo lzo_rle deflate zstd ubi ubifs",
            "/usr/sbin/ubiformat /usr/sbin/ubiattach /usr/sbin/ubidetach /usr/sbin/ubimkvol",
        ),
        Filesystem::Volume | Filesystem::Xfs | Filesystem::Btrfs => ("", ""),
    }
}

/// Returns the modules of a filesystem, and of algorithms that it asks for by name.
pub(super) fn modules<'a>(kind: Filesystem) -> impl Iterator<Item = &'a str> {
    needs(kind).0.split_whitespace()
}

/// Returns the programs that a guest needs for a filesystem.
pub(super) fn programs(kind: Filesystem) -> impl Iterator<Item = PathBuf> {
    needs(kind).1.split_whitespace().map(PathBuf::from)
}

/// Starts the cleaner of a mounted filesystem that has one.
pub(super) fn start_cleaner(kind: Filesystem, device: &str) -> Result<(), String> {
    if kind != Filesystem::Nilfs2 {
        return Ok(());
    }
    let mut command = Command::new(CLEANER);
    command.args(["-p", CLEANED_AFTER, device]);
    helper::run(&mut command, 0, TIME_LIMIT).map(|_| ())
}

/// Stops the cleaner, which keeps the filesystem busy, and waits for its end.
pub(super) fn stop_cleaner() {
    let processes = || {
        let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        entries.filter_map(|entry| {
            let name = std::fs::read_to_string(entry.path().join("comm")).ok()?;
            let pid = entry.file_name().to_str()?.parse().ok()?;
            Some(pid).filter(|_| name.trim() == "nilfs_cleanerd")
        })
    };
    for _ in 0..100 {
        let pids: Vec<i32> = processes().collect();
        if pids.is_empty() {
            return;
        }
        for pid in pids.into_iter().filter_map(rustix::process::Pid::from_raw) {
            // It may have ended by itself.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}
