//! Filesystems under test: their commands inside the guest.

use crate::guest::inside::{attach, command, detach, run_apart};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Cleaner of NILFS2, a process beside the mount.
const CLEANER: &str = "/usr/sbin/nilfs_cleanerd";
/// Age in seconds from which the cleaner may remove a checkpoint. Its default of an hour is longer than the test.
const CLEANED_AFTER: &str = "1";

/// Filesystem in the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// EROFS, an image by `tuff build` for Linux 6.1.
    Erofs,
    /// SquashFS, an image by `mksquashfs`.
    Squashfs,
    /// ext4 with the defaults of mkfs.ext4.
    Ext4,
    /// F2FS with the defaults of mkfs.f2fs.
    F2fs,
    /// NILFS2 with the defaults of mkfs.nilfs2. Its cleaner runs beside fio.
    Nilfs2,
    /// JFFS2 on raw flash.
    Jffs2,
    /// UBIFS on a UBI volume on raw flash.
    Ubifs,
}

/// All filesystems in the order of tables.
pub const KINDS: [Kind; 7] = [
    Kind::Erofs,
    Kind::Squashfs,
    Kind::Ext4,
    Kind::F2fs,
    Kind::Nilfs2,
    Kind::Jffs2,
    Kind::Ubifs,
];

impl Kind {
    /// Name in tables, which `--only` matches.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Erofs => "EROFS",
            Kind::Squashfs => "SquashFS",
            Kind::Ext4 => "ext4",
            Kind::F2fs => "F2FS",
            Kind::Nilfs2 => "NILFS2",
            Kind::Jffs2 => "JFFS2",
            Kind::Ubifs => "UBIFS",
        }
    }

    /// Name of the filesystem type in mount(2).
    fn kernel_type(self) -> &'static str {
        match self {
            Kind::Erofs => "erofs",
            Kind::Squashfs => "squashfs",
            Kind::Ext4 => "ext4",
            Kind::F2fs => "f2fs",
            Kind::Nilfs2 => "nilfs2",
            Kind::Jffs2 => "jffs2",
            Kind::Ubifs => "ubifs",
        }
    }

    /// True if the host builds images of it.
    pub fn is_image(self) -> bool {
        matches!(self, Kind::Erofs | Kind::Squashfs)
    }

    /// True if it lies on raw flash, whose devices are numbers of MTD partitions.
    pub fn is_flash(self) -> bool {
        matches!(self, Kind::Jffs2 | Kind::Ubifs)
    }

    /// Modules of the filesystem, and of algorithms that it asks for by name.
    pub(super) fn modules(self) -> &'static [&'static str] {
        match self {
            Kind::Erofs => &["crc32c_generic"],
            Kind::Squashfs => &["squashfs"],
            Kind::Ext4 => &["crc32c_generic", "ext4"],
            Kind::F2fs => &["crc32_generic", "crc32c_generic", "f2fs"],
            Kind::Nilfs2 => &["nilfs2"],
            Kind::Jffs2 => &["jffs2"],
            Kind::Ubifs => &[
                "crc32_generic",
                "lzo",
                "lzo_rle",
                "deflate",
                "zstd",
                "ubi",
                "ubifs",
            ],
        }
    }

    /// Programs that the guest needs for it.
    pub(super) fn programs(self) -> Vec<PathBuf> {
        let names: &[&str] = match self {
            Kind::Erofs | Kind::Squashfs => &[],
            Kind::Ext4 => &["/sbin/mkfs.ext4", "/sbin/e2fsck", "/etc/mke2fs.conf"],
            Kind::F2fs => &["/sbin/mkfs.f2fs", "/sbin/fsck.f2fs"],
            Kind::Nilfs2 => &["/sbin/mkfs.nilfs2", CLEANER, "/etc/nilfs_cleanerd.conf"],
            Kind::Jffs2 => &["/usr/sbin/flash_erase"],
            Kind::Ubifs => &[
                "/usr/sbin/ubiformat",
                "/usr/sbin/ubiattach",
                "/usr/sbin/ubidetach",
                "/usr/sbin/ubimkvol",
            ],
        };
        names.iter().map(PathBuf::from).collect()
    }

    /// Creates an empty filesystem.
    pub(super) fn format(self, device: &str) -> Result<(), String> {
        let mtd = format!("/dev/mtd{device}");
        let words: &[&str] = match self {
            Kind::Erofs | Kind::Squashfs => return Err("an image is built on the host".to_owned()),
            Kind::Ext4 => &["mkfs.ext4", "-q", "-F", device],
            Kind::F2fs => &["mkfs.f2fs", "-q", "-f", device],
            Kind::Nilfs2 => &["mkfs.nilfs2", "-q", "-f", device],
            Kind::Jffs2 => &["flash_erase", "-q", "-j", &mtd, "0", "0"],
            Kind::Ubifs => {
                command(0, &["ubiformat", &mtd, "-y", "-q"])?;
                self.attach_flash(device)?;
                let made = command(
                    0,
                    &["ubimkvol", &format!("/dev/ubi{device}"), "-N", "v", "-m"],
                );
                self.detach_flash(device)?;
                return made.map(|_| ());
            }
        };
        command(0, words).map(|_| ())
    }

    /// Mounts the filesystem. The attachment of UBI is a part of it.
    pub(super) fn mount(self, device: &str, point: &str) -> Result<(), String> {
        self.attach_flash(device)?;
        let source = match self {
            Kind::Jffs2 => format!("mtd{device}"),
            Kind::Ubifs => format!("ubi{device}:v"),
            _ => device.to_owned(),
        };
        let mounted = attach(self.kernel_type(), &source, point, "", self.is_image());
        if mounted.is_err() {
            self.detach_flash(device)?;
        }
        mounted
    }

    /// Unmounts the filesystem.
    pub(super) fn unmount(self, device: &str, point: &str) -> Result<(), String> {
        detach(point)?;
        self.detach_flash(device)
    }

    /// Starts the cleaner of a mounted filesystem that has one.
    pub(super) fn start_cleaner(self, device: &str) -> Result<(), String> {
        match self {
            // The cleaner leaves a process behind, which would hold a pipe open.
            Kind::Nilfs2 => run_apart(&[CLEANER, "-p", CLEANED_AFTER, device]),
            _ => Ok(()),
        }
    }

    /// Stops the cleaner, which keeps the filesystem busy, and waits for its end.
    pub(super) fn stop_cleaner(self) {
        let processes = || {
            let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
            entries.filter_map(|entry| {
                let name = std::fs::read_to_string(entry.path().join("comm")).ok()?;
                let is_cleaner = name.trim() == "nilfs_cleanerd";
                entry
                    .file_name()
                    .to_str()?
                    .parse()
                    .ok()
                    .filter(|_| is_cleaner)
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
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    }

    fn attach_flash(self, device: &str) -> Result<(), String> {
        match self {
            Kind::Ubifs => command(0, &["ubiattach", "-m", device, "-d", device]).map(|_| ()),
            _ => Ok(()),
        }
    }

    fn detach_flash(self, device: &str) -> Result<(), String> {
        match self {
            Kind::Ubifs => command(0, &["ubidetach", "-d", device]).map(|_| ()),
            _ => Ok(()),
        }
    }

    /// Checks the unmounted filesystem without changing it. `None` if no such program exists.
    pub(super) fn check(self, device: &str, tuff: &str) -> Option<Result<(), String>> {
        match self {
            Kind::Erofs => Some(command(0, &[tuff, "check", "--quiet", device]).map(|_| ())),
            Kind::Ext4 => Some(command(0, &["e2fsck", "-f", "-n", device]).map(|_| ())),
            Kind::F2fs => Some(f2fs_check(device)),
            Kind::Squashfs | Kind::Nilfs2 | Kind::Jffs2 | Kind::Ubifs => None,
        }
    }

    /// Runs the automatic repair, or the manual one (`all`). `None` if no such program exists.
    pub(super) fn repair(self, device: &str, all: bool) -> Option<Result<(), String>> {
        let words: &[&str] = match (self, all) {
            (Kind::Ext4, false) => &["e2fsck", "-f", "-p", device],
            (Kind::Ext4, true) => &["e2fsck", "-f", "-y", device],
            (Kind::F2fs, false) => &["fsck.f2fs", "-a", device],
            (Kind::F2fs, true) => &["fsck.f2fs", "-f", "-y", device],
            _ => return None,
        };
        Some(command(if all { 2 } else { 1 }, words).map(|_| ()))
    }
}

/// Runs fsck.f2fs, whose exit code does not tell whether it found something.
fn f2fs_check(device: &str) -> Result<(), String> {
    let said = command(i32::MAX, &["fsck.f2fs", "--dry-run", "-f", device])?;
    match said
        .lines()
        .find(|line| line.contains("[Fail]") || line.contains("[ASSERT]"))
    {
        None => Ok(()),
        Some(line) => Err(format!("fsck.f2fs: {}", line.trim())),
    }
}
