//! Filesystems under test: commands that create, mount, check and repair them, as their documentation
//! recommends.

use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Stdio};

/// Timeout of a command. Unit: seconds, in the format of timeout(1).
const PATIENCE: &str = "90";

/// Filesystem on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A volume of this project.
    Volume,
    /// ext4 with the defaults of mkfs.ext4.
    Ext4,
    /// XFS with the defaults of mkfs.xfs.
    Xfs,
    /// Btrfs with the defaults of mkfs.btrfs: metadata duplicated, data stored once.
    Btrfs,
}

/// All filesystems in the order of tables.
pub const KINDS: [Kind; 4] = [Kind::Volume, Kind::Ext4, Kind::Xfs, Kind::Btrfs];

/// Result of a command.
pub(super) enum Said {
    /// Exit code 0, or another one that means success for the tool.
    Fine,
    /// Description of the failure.
    Wrong(String),
}

impl Said {
    pub(super) fn fine(&self) -> bool {
        matches!(self, Said::Fine)
    }
}

impl Kind {
    /// Name in tables, which `--only` matches.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Volume => "volume",
            Kind::Ext4 => "ext4",
            Kind::Xfs => "XFS",
            Kind::Btrfs => "Btrfs",
        }
    }

    /// Returns the required program and the argument that prints its version.
    pub(super) fn program(self) -> (&'static str, &'static str) {
        match self {
            Kind::Volume => ("tuff", "--version"),
            Kind::Ext4 => ("mkfs.ext4", "-V"),
            Kind::Xfs => ("mkfs.xfs", "-V"),
            Kind::Btrfs => ("mkfs.btrfs", "--version"),
        }
    }

    /// Returns the version line of its program, or None if the program is missing.
    pub(super) fn version(self, tuff: &Path) -> Option<String> {
        let (program, argument) = self.program();
        let program = match self {
            Kind::Volume => tuff.as_os_str(),
            _ => OsStr::new(program),
        };
        let output = Command::new(program)
            .arg(argument)
            .stdin(Stdio::null())
            .output()
            .ok()?;
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text).into_owned();
        text.lines().next().map(|line| line.trim().to_owned())
    }

    /// Creates the filesystem on a device.
    pub(super) fn make(self, tuff: &Path, device: &Path) -> Result<()> {
        let device = device.as_os_str();
        let said = match self {
            Kind::Volume => {
                let create = ["volume", "create", "--force"].map(OsStr::new);
                run(tuff.as_os_str(), create.into_iter().chain([device]))?
            }
            Kind::Ext4 => run("mkfs.ext4", ["-q".as_ref(), "-F".as_ref(), device])?,
            Kind::Xfs => run("mkfs.xfs", ["-q".as_ref(), "-f".as_ref(), device])?,
            Kind::Btrfs => run("mkfs.btrfs", ["-q".as_ref(), "-f".as_ref(), device])?,
        };
        match said {
            Said::Fine => Ok(()),
            Said::Wrong(what) => Err(Error::Command(format!(
                "cannot create {}: {what}",
                self.name()
            ))),
        }
    }

    /// Mounts the device at `point`.
    pub(super) fn mount(self, tuff: &Path, device: &Path, point: &Path) -> Result<Said> {
        let (device, point) = (device.as_os_str(), point.as_os_str());
        match self {
            Kind::Volume => run(tuff, ["volume".as_ref(), "mount".as_ref(), device, point]),
            Kind::Ext4 => run("mount", ["-t".as_ref(), "ext4".as_ref(), device, point]),
            Kind::Xfs => run("mount", ["-t".as_ref(), "xfs".as_ref(), device, point]),
            Kind::Btrfs => run("mount", ["-t".as_ref(), "btrfs".as_ref(), device, point]),
        }
    }

    /// Unmounts the filesystem. If that fails, detaches it lazily so that the mount point is free for the
    /// next round.
    pub(super) fn unmount(self, tuff: &Path, point: &Path) -> Result<Said> {
        let point = point.as_os_str();
        let said = match self {
            Kind::Volume => run(tuff, [OsStr::new("umount"), point])?,
            _ => run("umount", [point])?,
        };
        if !said.fine() {
            run("umount", [OsStr::new("--lazy"), point])?;
        }
        Ok(said)
    }

    /// Checks the filesystem read-only.
    pub(super) fn check(self, tuff: &Path, device: &Path) -> Result<Said> {
        let device = device.as_os_str();
        match self {
            Kind::Volume => run(tuff, ["volume".as_ref(), "check".as_ref(), device]),
            Kind::Ext4 => run("e2fsck", ["-f".as_ref(), "-n".as_ref(), device]),
            Kind::Xfs => run("xfs_repair", ["-n".as_ref(), device]),
            Kind::Btrfs => run("btrfs", ["check".as_ref(), "--readonly".as_ref(), device]),
        }
    }

    /// Runs the automatic repair of the filesystem: `e2fsck -p` for ext4, a scrub of the mounted filesystem
    /// for Btrfs. Volumes and XFS have none.
    pub(super) fn mend(self, tuff: &Path, device: &Path, point: &Path) -> Result<Said> {
        match self {
            Kind::Volume | Kind::Xfs => Ok(Said::Wrong("no automatic repair exists".to_owned())),
            Kind::Ext4 => fine_up_to(
                1,
                "e2fsck",
                ["-f".as_ref(), "-p".as_ref(), device.as_os_str()],
            ),
            Kind::Btrfs => {
                let mounted = self.mount(tuff, device, point)?;
                if !mounted.fine() {
                    return Ok(mounted);
                }
                let scrub = ["scrub", "start", "-B"].map(OsStr::new);
                let said = run("btrfs", scrub.into_iter().chain([point.as_os_str()]))?;
                self.unmount(tuff, point)?;
                Ok(said)
            }
        }
    }

    /// Runs the manual repair for a filesystem that does not mount or returns errors.
    pub(super) fn repair(self, tuff: &Path, device: &Path) -> Result<Said> {
        let device = device.as_os_str();
        match self {
            Kind::Volume => {
                let check = ["volume", "check", "--data"].map(OsStr::new);
                let how = |how: &'static str| {
                    let all = check.into_iter().chain([OsStr::new(how), device]);
                    fine_up_to(1, tuff, all)
                };
                match how("--repair")? {
                    Said::Fine => Ok(Said::Fine),
                    Said::Wrong(_) => how("--rebuild"),
                }
            }
            Kind::Ext4 => fine_up_to(2, "e2fsck", ["-f".as_ref(), "-y".as_ref(), device]),
            Kind::Xfs => match run("xfs_repair", [device])? {
                Said::Fine => Ok(Said::Fine),
                Said::Wrong(_) => run("xfs_repair", [OsStr::new("-L"), device]),
            },
            Kind::Btrfs => {
                // Restores a torn superblock from its copies; does nothing to an intact one.
                let rescue = ["rescue", "super-recover", "-y"].map(OsStr::new);
                run("btrfs", rescue.into_iter().chain([device]))?;
                let check = ["check", "--repair", "--force"].map(OsStr::new);
                run("btrfs", check.into_iter().chain([device]))
            }
        }
    }
}

fn run<'a>(program: impl AsRef<OsStr>, args: impl IntoIterator<Item = &'a OsStr>) -> Result<Said> {
    fine_up_to(0, program, args)
}

/// Runs a command that succeeds with exit codes up to `fine`. timeout(1) puts it into its own process group,
/// so a ^C reaches only the lab.
fn fine_up_to<'a>(
    fine: i32,
    program: impl AsRef<OsStr>,
    args: impl IntoIterator<Item = &'a OsStr>,
) -> Result<Said> {
    let program = program.as_ref();
    // Background processes inherit standard error, so a pipe would never reach its end.
    let status = Command::new("timeout")
        .args(["--kill-after=10", PATIENCE])
        .arg(program)
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .map_err(|e| Error::Io(format!("run {}", program.display()), e))?;
    let name = Path::new(program).file_name().unwrap_or(program).display();
    Ok(match status.code() {
        Some(code) if code <= fine => Said::Fine,
        Some(124 | 137) => Said::Wrong(format!("{name} timed out")),
        Some(code) => Said::Wrong(format!("{name} exited with code {code}")),
        None => Said::Wrong(format!("{name} was killed by a signal")),
    })
}
