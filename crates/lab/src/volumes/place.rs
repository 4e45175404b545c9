//! Where loads are done: a filesystem, made for one round.

use crate::work::{self, Work};
use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Room of each. Unit: bytes.
const SIZE: u64 = 4 << 30;

/// Kinds of place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A volume in zone files.
    Zones,
    /// A volume in one file.
    File,
    /// ext4 in a file, through a loop device.
    Ext4,
    /// The host's own filesystem.
    Host,
}

/// In the order of a round.
pub const PLACES: [Kind; 4] = [Kind::Zones, Kind::File, Kind::Ext4, Kind::Host];

impl Kind {
    /// What tables call it.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Zones => "volume, zone files",
            Kind::File => "volume, one file",
            Kind::Ext4 => "ext4, loop device",
            Kind::Host => "host",
        }
    }
}

/// A mounted filesystem. Unmounted and removed at its end, or when it is dropped.
pub struct Place {
    kind: Kind,
    tuff: PathBuf,
    store: PathBuf,
    point: PathBuf,
    ended: bool,
}

impl Place {
    /// Makes one, empty, and mounts it.
    pub(super) fn make(kind: Kind, work: &Work, tuff: &Path) -> Result<Self> {
        let place = Self {
            kind,
            tuff: tuff.to_owned(),
            store: work.path("store"),
            point: work.path("mount"),
            ended: false,
        };
        let (store, point) = (place.store.as_os_str(), place.point.as_os_str());
        std::fs::create_dir(&place.point).map_err(|e| Error::io("create", &place.point, e))?;
        let size = SIZE.to_string();
        match kind {
            Kind::Zones | Kind::File => {
                let how: &[&str] = if kind == Kind::File { &["--file"] } else { &[] };
                let create = ["volume", "create", "--size", &size];
                let create = create.iter().chain(how).map(OsStr::new);
                command(tuff, create.chain([store]))?;
                command(tuff, ["volume".as_ref(), "mount".as_ref(), store, point])?;
            }
            Kind::Ext4 => {
                let file = File::create_new(&place.store);
                file.and_then(|file| file.set_len(SIZE))
                    .map_err(|e| Error::io("create", &place.store, e))?;
                command("mkfs.ext4", ["-q".as_ref(), "-F".as_ref(), store])?;
                command("mount", ["-o".as_ref(), "loop".as_ref(), store, point])?;
            }
            Kind::Host => {}
        }
        Ok(place)
    }

    /// Its root.
    pub fn point(&self) -> &Path {
        &self.point
    }

    /// Unmounts it and removes all of it.
    pub(super) fn end(mut self) -> Result<()> {
        self.take_away()
    }

    fn take_away(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.ended, true) {
            return Ok(());
        }
        match self.kind {
            Kind::Zones | Kind::File => {
                command(&self.tuff, ["umount".as_ref(), self.point.as_os_str()])?
            }
            Kind::Ext4 => command("umount", [&self.point])?,
            Kind::Host => {}
        }
        work::remove(&self.store)?;
        work::remove(&self.point)?;
        // The next one shall not wait for what this one left to the disk.
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
    // What stays in the background keeps standard error: a pipe would never end.
    let status = command
        .status()
        .map_err(|e| Error::Io(format!("run {shown}"), e))?;
    match status.success() {
        true => Ok(()),
        false => Err(Error::Command(format!("{shown} failed: {status}"))),
    }
}
