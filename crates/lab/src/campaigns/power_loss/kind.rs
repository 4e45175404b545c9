//! The filesystems: how they are made, mounted, checked and repaired, each by its own tools as its documents say.

use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Stdio};

/// How long one command may take before it counts as hanging. Unit: seconds, as timeout(1) takes it.
const PATIENCE: &str = "90";

/// What is on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Ours.
    Volume,
    /// ext4 as mkfs.ext4 makes it.
    Ext4,
    /// XFS as mkfs.xfs makes it.
    Xfs,
    /// Btrfs as mkfs.btrfs makes it: metadata twice, data once.
    Btrfs,
}

/// In the order of tables.
pub const KINDS: [Kind; 4] = [Kind::Volume, Kind::Ext4, Kind::Xfs, Kind::Btrfs];

/// What a command came to.
pub(super) enum Said {
    /// Exit code 0, or one that its tool says is fine.
    Fine,
    /// What went wrong.
    Wrong(String),
}

impl Said {
    pub(super) fn fine(&self) -> bool {
        matches!(self, Said::Fine)
    }
}

impl Kind {
    /// What tables call it, and what `--only` is compared with.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Volume => "volume",
            Kind::Ext4 => "ext4",
            Kind::Xfs => "XFS",
            Kind::Btrfs => "Btrfs",
        }
    }

    /// A program without which it cannot take part, and the argument it tells its version for.
    pub(super) fn program(self) -> (&'static str, &'static str) {
        match self {
            Kind::Volume => ("tuff", "--version"),
            Kind::Ext4 => ("mkfs.ext4", "-V"),
            Kind::Xfs => ("mkfs.xfs", "-V"),
            Kind::Btrfs => ("mkfs.btrfs", "--version"),
        }
    }

    /// What it calls its version; `None` if its program is not there.
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

    /// Does it want a device of many more addresses than it has room?
    pub(super) fn is_thin(self) -> bool {
        self == Kind::Volume
    }

    /// Makes it on a device.
    pub(super) fn make(self, tuff: &Path, device: &Path) -> Result<()> {
        let device = device.as_os_str();
        let said = match self {
            Kind::Volume => {
                let create = ["volume", "create", "--force", "--size", "512M"].map(OsStr::new);
                run(tuff.as_os_str(), create.into_iter().chain([device]))?
            }
            Kind::Ext4 => run("mkfs.ext4", ["-q".as_ref(), "-F".as_ref(), device])?,
            Kind::Xfs => run("mkfs.xfs", ["-q".as_ref(), "-f".as_ref(), device])?,
            Kind::Btrfs => run("mkfs.btrfs", ["-q".as_ref(), "-f".as_ref(), device])?,
        };
        match said {
            Said::Fine => Ok(()),
            Said::Wrong(what) => Err(Error::Command(format!("making {}: {what}", self.name()))),
        }
    }

    /// Mounts it.
    pub(super) fn mount(self, tuff: &Path, device: &Path, point: &Path) -> Result<Said> {
        let (device, point) = (device.as_os_str(), point.as_os_str());
        match self {
            Kind::Volume => run(tuff, ["volume".as_ref(), "mount".as_ref(), device, point]),
            Kind::Ext4 => run("mount", ["-t".as_ref(), "ext4".as_ref(), device, point]),
            Kind::Xfs => run("mount", ["-t".as_ref(), "xfs".as_ref(), device, point]),
            Kind::Btrfs => run("mount", ["-t".as_ref(), "btrfs".as_ref(), device, point]),
        }
    }

    /// Unmounts it. What does not go is detached, so that the next round has the place.
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

    /// Looks for mistakes, and changes nothing.
    pub(super) fn check(self, tuff: &Path, device: &Path) -> Result<Said> {
        let device = device.as_os_str();
        match self {
            Kind::Volume => run(tuff, ["volume".as_ref(), "check".as_ref(), device]),
            Kind::Ext4 => run("e2fsck", ["-f".as_ref(), "-n".as_ref(), device]),
            Kind::Xfs => run("xfs_repair", ["-n".as_ref(), device]),
            Kind::Btrfs => run("btrfs", ["check".as_ref(), "--readonly".as_ref(), device]),
        }
    }

    /// What mends without a question at each start: e2fsck -p, or a scrub of what is mounted. The others have nothing of the kind.
    pub(super) fn mend(self, tuff: &Path, device: &Path, point: &Path) -> Result<Said> {
        match self {
            Kind::Volume | Kind::Xfs => Ok(Said::Wrong("nothing mends by itself".to_owned())),
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

    /// What an administrator does when it does not mount, or answers with errors.
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
                // A superblock that is torn, from its copies; if it is not, this does nothing.
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

/// Runs a command that is fine with exit codes up to one, in a group of its own: a ^C is ours.
fn fine_up_to<'a>(
    fine: i32,
    program: impl AsRef<OsStr>,
    args: impl IntoIterator<Item = &'a OsStr>,
) -> Result<Said> {
    let program = program.as_ref();
    // What stays in the background keeps standard error: a pipe would never end.
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
        Some(124 | 137) => Said::Wrong(format!("{name} hangs")),
        Some(code) => Said::Wrong(format!("{name} ends with {code}")),
        None => Said::Wrong(format!("{name} ended by a signal")),
    })
}
