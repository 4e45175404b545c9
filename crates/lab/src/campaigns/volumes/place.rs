//! Places in which loads run: filesystems that are created for one round.

use crate::measure::workspace::{self, Work};
use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Capacity of each filesystem. Unit: bytes.
pub(crate) const SIZE: u64 = 4 << 30;

/// Type of filesystem and of its backing store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A volume in zone files.
    Zones,
    /// The same, mounted with `--discard polite`.
    Polite,
    /// The same, mounted with `--discard dispatch`.
    Dispatch,
    /// The same with sections of 1 MiB instead of 1 GiB.
    Sections,
    /// A volume in one file.
    File,
    /// ext4 in a file, through a loop device.
    Ext4,
    /// XFS in a file, through a loop device.
    Xfs,
    /// Btrfs in a file, through a loop device.
    Btrfs,
    /// The filesystem of the host.
    Host,
}

/// Places of this measurement in the order of a round.
pub const PLACES: [Kind; 4] = [Kind::Zones, Kind::File, Kind::Ext4, Kind::Host];

/// Places that compare dispatches of discards and sizes of sections.
pub const DISCARDS: [Kind; 4] = [Kind::Zones, Kind::Polite, Kind::Dispatch, Kind::Sections];

impl Kind {
    /// Name of the table column.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Zones => "volume, zone files",
            Kind::Polite => "volume, polite discards",
            Kind::Dispatch => "volume, dispatched discards",
            Kind::Sections => "volume, sections of 1 MiB",
            Kind::File => "volume, one file",
            Kind::Ext4 => "ext4, loop device",
            Kind::Xfs => "XFS, loop device",
            Kind::Btrfs => "Btrfs, loop device",
            Kind::Host => "host",
        }
    }
}

/// Mounted filesystem. Unmounted and removed by `Place::end` or when dropped.
pub struct Place {
    kind: Kind,
    tuff: PathBuf,
    store: PathBuf,
    point: PathBuf,
    mounted: bool,
    ended: bool,
}

impl Place {
    /// Creates an empty filesystem and mounts it.
    pub(crate) fn make(kind: Kind, work: &Work, tuff: &Path) -> Result<Self> {
        let mut place = Self {
            kind,
            tuff: tuff.to_owned(),
            store: work.path("store"),
            point: work.path("mount"),
            mounted: false,
            ended: false,
        };
        let store = place.store.as_os_str();
        std::fs::create_dir(&place.point).map_err(|e| Error::io("create", &place.point, e))?;
        let size = SIZE.to_string();
        match kind {
            Kind::Zones | Kind::Polite | Kind::Dispatch | Kind::Sections | Kind::File => {
                let how: &[&str] = match kind {
                    Kind::File => &["--file"],
                    Kind::Sections => &["--section", "1M"],
                    _ => &[],
                };
                let create = ["volume", "create", "--size", &size];
                let create = create.iter().chain(how).map(OsStr::new);
                command(tuff, create.chain([store]))?;
            }
            Kind::Ext4 | Kind::Xfs | Kind::Btrfs => {
                let file = File::create_new(&place.store);
                file.and_then(|file| file.set_len(SIZE))
                    .map_err(|e| Error::io("create", &place.store, e))?;
                let (maker, force) = match kind {
                    Kind::Ext4 => ("mkfs.ext4", "-F"),
                    Kind::Xfs => ("mkfs.xfs", "-f"),
                    _ => ("mkfs.btrfs", "-f"),
                };
                command(maker, ["-q".as_ref(), force.as_ref(), store])?;
            }
            Kind::Host => {}
        }
        place.mount()?;
        Ok(place)
    }

    /// Mounts it again after [`Place::unmount`]. [`Place::make`] returns a mounted place.
    pub(crate) fn mount(&mut self) -> Result<()> {
        let (store, point) = (self.store.as_os_str(), self.point.as_os_str());
        match self.kind {
            Kind::Zones | Kind::Polite | Kind::Dispatch | Kind::Sections | Kind::File => {
                let how: &[&str] = match self.kind {
                    Kind::Polite => &["--discard", "polite"],
                    Kind::Dispatch => &["--discard", "dispatch"],
                    _ => &[],
                };
                let mount = ["volume", "mount"].iter().chain(how).map(OsStr::new);
                command(&self.tuff, mount.chain([store, point]))?;
            }
            Kind::Ext4 | Kind::Xfs | Kind::Btrfs => {
                command("mount", ["-o".as_ref(), "loop".as_ref(), store, point])?;
            }
            Kind::Host => {}
        }
        self.mounted = true;
        Ok(())
    }

    /// Unmounts it and keeps its content. Does nothing if it is not mounted.
    pub(crate) fn unmount(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.mounted, false) {
            match self.kind {
                Kind::Zones | Kind::Polite | Kind::Dispatch | Kind::Sections | Kind::File => {
                    command(&self.tuff, ["umount".as_ref(), self.point.as_os_str()])?;
                }
                Kind::Ext4 | Kind::Xfs | Kind::Btrfs => command("umount", [&self.point])?,
                Kind::Host => {}
            }
        }
        Ok(())
    }

    /// Runs the checker of the filesystem, which must be unmounted. Returns an error if the checker fails.
    pub(crate) fn check(&self) -> Result<()> {
        let store = self.store.as_os_str();
        let with = |program: &OsStr, args: &[&str]| {
            command(program, args.iter().map(OsStr::new).chain([store]))
        };
        match self.kind {
            Kind::Zones | Kind::Polite | Kind::Dispatch | Kind::Sections | Kind::File => {
                with(self.tuff.as_os_str(), &["volume", "check"])
            }
            Kind::Ext4 => with("e2fsck".as_ref(), &["-f", "-n"]),
            Kind::Xfs => with("xfs_repair".as_ref(), &["-n", "-f"]),
            Kind::Btrfs => with("btrfs".as_ref(), &["check", "--readonly"]),
            Kind::Host => Ok(()),
        }
    }

    /// Returns the allocated space on the host. Unit: bytes.
    pub(crate) fn held_bytes(&self) -> Result<u64> {
        fn of(path: &Path) -> std::io::Result<u64> {
            use std::os::unix::fs::MetadataExt;
            let found = std::fs::symlink_metadata(path)?;
            let mut bytes = found.blocks() * 512;
            if found.is_dir() {
                for entry in std::fs::read_dir(path)? {
                    bytes += of(&entry?.path())?;
                }
            }
            Ok(bytes)
        }
        of(&self.store).map_err(|e| Error::io("stat", &self.store, e))
    }

    /// Path of its mount point.
    pub fn point(&self) -> &Path {
        &self.point
    }

    /// Unmounts the filesystem, and removes its backing store and mount point.
    pub(crate) fn end(mut self) -> Result<()> {
        self.take_away()
    }

    fn take_away(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.ended, true) {
            return Ok(());
        }
        self.unmount()?;
        workspace::remove(&self.store)?;
        workspace::remove(&self.point)?;
        // Writeback of this place must not delay the next one.
        rustix::fs::sync();
        Ok(())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Err(e) = self.take_away() {
            eprintln!("tuff-lab: warning: {e}");
        }
    }
}

fn command<A: AsRef<OsStr>>(
    program: impl AsRef<OsStr>,
    args: impl IntoIterator<Item = A>,
) -> Result<()> {
    let mut command = Command::new(program);
    command
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    let shown = Path::new(command.get_program()).display().to_string();
    // Background processes inherit standard error, so a pipe would never reach its end.
    let status = command
        .status()
        .map_err(|e| Error::Io(format!("run {shown}"), e))?;
    match status.success() {
        true => Ok(()),
        false => Err(Error::Command(format!("{shown} failed: {status}"))),
    }
}
