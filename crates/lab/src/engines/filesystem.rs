//! Filesystems with the commands that create, check and repair them, as their documentation recommends. The same table serves
//! the host and guests.

use crate::measure::helper;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use serde::{Deserialize, Serialize};
use std::ffi::CString;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Time limit of a command.
const TIME_LIMIT: Duration = Duration::from_secs(90);

/// Filesystem on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Filesystem {
    /// A volume of this project.
    Volume,
    /// EROFS, an image by `tuff build`.
    Erofs,
    /// SquashFS, an image by `mksquashfs`.
    Squashfs,
    /// ext4 with the defaults of mkfs.ext4.
    Ext4,
    /// XFS with the defaults of mkfs.xfs.
    Xfs,
    /// Btrfs with the defaults of mkfs.btrfs: metadata duplicated, data stored once.
    Btrfs,
    /// F2FS with the defaults of mkfs.f2fs.
    F2fs,
    /// NILFS2 with the defaults of mkfs.nilfs2.
    Nilfs2,
    /// JFFS2 on raw flash.
    Jffs2,
    /// UBIFS on a UBI volume on raw flash.
    Ubifs,
}

/// Names and commands of a filesystem. In all of them, `DEVICE`, `POINT` and `TUFF` stand for paths; the device of a filesystem
/// on flash is the number of an MTD partition.
struct Row {
    name: &'static str,
    /// Commands that create an empty filesystem.
    make: &'static [&'static str],
    /// Command before a mount, and after the unmount.
    attach: [&'static str; 2],
    /// Source of the mount.
    source: &'static str,
    /// Read-only check.
    check: &'static str,
    /// Automatic repair. With `POINT`, it needs the mounted filesystem.
    mend: &'static str,
    /// Manual repairs, tried in this order, and their highest exit code that means success.
    repair: (i32, &'static [&'static str]),
}

const ROW: Row = Row {
    name: "",
    make: &[],
    attach: ["", ""],
    source: "DEVICE",
    check: "",
    mend: "",
    repair: (0, &[]),
};

impl Filesystem {
    const fn row(self) -> Row {
        match self {
            Filesystem::Volume => Row {
                name: "volume",
                make: &["TUFF volume create --force DEVICE"],
                check: "TUFF volume check DEVICE",
                repair: (
                    1,
                    &[
                        "TUFF volume check --data --repair DEVICE",
                        "TUFF volume check --data --rebuild DEVICE",
                    ],
                ),
                ..ROW
            },
            Filesystem::Erofs => Row {
                name: "EROFS",
                check: "TUFF check --quiet DEVICE",
                ..ROW
            },
            Filesystem::Squashfs => Row {
                name: "SquashFS",
                ..ROW
            },
            Filesystem::Ext4 => Row {
                name: "ext4",
                make: &["mkfs.ext4 -q -F DEVICE"],
                check: "e2fsck -f -n DEVICE",
                mend: "e2fsck -f -p DEVICE",
                repair: (2, &["e2fsck -f -y DEVICE"]),
                ..ROW
            },
            Filesystem::Xfs => Row {
                name: "XFS",
                make: &["mkfs.xfs -q -f DEVICE"],
                check: "xfs_repair -n DEVICE",
                repair: (0, &["xfs_repair DEVICE", "xfs_repair -L DEVICE"]),
                ..ROW
            },
            Filesystem::Btrfs => Row {
                name: "Btrfs",
                make: &["mkfs.btrfs -q -f DEVICE"],
                check: "btrfs check --readonly DEVICE",
                mend: "btrfs scrub start -B POINT",
                repair: (0, &["btrfs check --repair --force DEVICE"]),
                ..ROW
            },
            Filesystem::F2fs => Row {
                name: "F2FS",
                make: &["mkfs.f2fs -q -f DEVICE"],
                check: "fsck.f2fs --dry-run -f DEVICE",
                mend: "fsck.f2fs -a DEVICE",
                repair: (2, &["fsck.f2fs -f -y DEVICE"]),
                ..ROW
            },
            Filesystem::Nilfs2 => Row {
                name: "NILFS2",
                make: &["mkfs.nilfs2 -q -f DEVICE"],
                ..ROW
            },
            Filesystem::Jffs2 => Row {
                name: "JFFS2",
                make: &["flash_erase -q -j /dev/mtdDEVICE 0 0"],
                source: "mtdDEVICE",
                ..ROW
            },
            Filesystem::Ubifs => Row {
                name: "UBIFS",
                make: &[
                    "ubiformat /dev/mtdDEVICE -y -q",
                    "ubiattach -m DEVICE -d DEVICE",
                    "ubimkvol /dev/ubiDEVICE -N v -m",
                    "ubidetach -d DEVICE",
                ],
                attach: ["ubiattach -m DEVICE -d DEVICE", "ubidetach -d DEVICE"],
                source: "ubiDEVICE:v",
                ..ROW
            },
        }
    }

    /// Name in tables, which `--only` matches.
    pub const fn name(self) -> &'static str {
        self.row().name
    }

    /// True if it is built as an image, not written.
    pub fn is_image(self) -> bool {
        matches!(self, Filesystem::Erofs | Filesystem::Squashfs)
    }

    /// True if it lies on raw flash, whose devices are numbers of MTD partitions.
    pub fn is_flash(self) -> bool {
        matches!(self, Filesystem::Jffs2 | Filesystem::Ubifs)
    }

    /// Returns the program that creates it. None for images.
    pub fn maker(self) -> Option<&'static str> {
        let first = self.row().make.first()?;
        Some(first.split(' ').next().unwrap_or_default())
    }
}

/// Filesystem on a device, with its mount point. Errors are reasons without a trailing period.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// Filesystem on the device.
    pub kind: Filesystem,
    /// Path of the program `tuff`.
    pub tuff: &'a Path,
    /// Path of the device, or number of the MTD partition.
    pub device: &'a str,
    /// Directory of the mount.
    pub point: &'a str,
}

impl Place<'_> {
    /// Runs a command of the table. An empty command succeeds.
    fn run(&self, fine: i32, command: &str) -> Result<String, String> {
        let tuff = self.tuff.to_string_lossy();
        let word = |word: &str| {
            let word = word.replace("DEVICE", self.device);
            word.replace("POINT", self.point).replace("TUFF", &tuff)
        };
        let mut words = command.split(' ').map(word);
        match words.next().filter(|program| !program.is_empty()) {
            Some(program) => helper::run(Command::new(program).args(words), fine, TIME_LIMIT),
            None => Ok(String::new()),
        }
    }

    /// Creates an empty filesystem.
    pub fn make(&self) -> Result<(), String> {
        let commands = self.kind.row().make;
        commands.iter().try_for_each(|c| self.run(0, c).map(|_| ()))
    }

    /// Mounts the filesystem with options of mount(2).
    pub fn mount(&self, options: &str) -> Result<(), String> {
        if self.kind == Filesystem::Volume {
            return self.run(0, "TUFF volume mount DEVICE POINT").map(|_| ());
        }
        let row = self.kind.row();
        self.run(0, row.attach[0])?;
        let kind = row.name.to_lowercase();
        let source = row.source.replace("DEVICE", self.device);
        let mounted = attach(&kind, &source, self.point, options, self.kind.is_image());
        if mounted.is_err() {
            self.run(0, row.attach[1])?;
        }
        mounted
    }

    /// Unmounts the filesystem, and waits for its server.
    pub fn unmount(&self) -> Result<(), String> {
        let done = match self.kind {
            Filesystem::Volume => self.run(0, "TUFF umount POINT"),
            _ => detach(self.point).and_then(|()| self.run(0, self.kind.row().attach[1])),
        };
        if done.is_err() {
            // Frees the mount point for the next round.
            let _ = unmount(self.point, UnmountFlags::DETACH);
        }
        done.map(|_| ())
    }

    /// Checks the unmounted filesystem without changing it. `None` if no program for that exists.
    pub fn check(&self) -> Option<Result<(), String>> {
        let command = Some(self.kind.row().check).filter(|c| !c.is_empty())?;
        if self.kind != Filesystem::F2fs {
            return Some(self.run(0, command).map(|_| ()));
        }
        // The exit code of fsck.f2fs does not tell whether it found something.
        let message = self.run(i32::MAX, command);
        let is_finding = |line: &&str| line.contains("[Fail]") || line.contains("[ASSERT]");
        Some(
            message.and_then(|message| match message.lines().find(is_finding) {
                None => Ok(()),
                Some(line) => Err(format!("fsck.f2fs: {}", line.trim())),
            }),
        )
    }

    /// Runs the automatic repair.
    pub fn mend(&self) -> Result<(), String> {
        let command = self.kind.row().mend;
        if command.is_empty() {
            return Err("no automatic repair exists".to_owned());
        }
        if !command.contains("POINT") {
            return self.run(1, command).map(|_| ());
        }
        self.mount("")?;
        let mended = self.run(0, command).map(|_| ());
        self.unmount()?;
        mended
    }

    /// Runs the manual repair for a filesystem that does not mount or returns errors.
    pub fn repair(&self) -> Result<(), String> {
        if self.kind == Filesystem::Btrfs {
            // Restores a torn superblock from its copies; does nothing to an intact one.
            let _ = self.run(0, "btrfs rescue super-recover -y DEVICE");
        }
        let (fine, commands) = self.kind.row().repair;
        let mut done = Err("no repair exists".to_owned());
        for command in commands {
            done = self.run(fine, command).map(|_| ());
            if done.is_ok() {
                break;
            }
        }
        done
    }
}

/// Mounts a filesystem.
pub fn attach(
    kind: &str,
    source: &str,
    point: &str,
    options: &str,
    read_only: bool,
) -> Result<(), String> {
    let flags = match read_only {
        true => MountFlags::RDONLY,
        false => MountFlags::empty(),
    };
    let options = CString::new(options).map_err(|e| e.to_string())?;
    let mounted = mount(source, point, kind, flags, &*options);
    mounted.map_err(|e| std::io::Error::from(e).to_string())
}

/// Unmounts the filesystem at `point`.
pub fn detach(point: &str) -> Result<(), String> {
    let done = unmount(point, UnmountFlags::empty());
    done.map_err(|e| std::io::Error::from(e).to_string())
}
