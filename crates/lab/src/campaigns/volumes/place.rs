//! Places in which loads run: filesystems that are created for one round.

use crate::engines::filesystem::{self, Filesystem};
use crate::measure::device::Device;
use crate::measure::helper;
use crate::measure::workspace::{self, Work};
use crate::{At, Error, Result};
use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};

/// Capacity of each filesystem. Unit: bytes.
pub(crate) const SIZE: u64 = 4 << 30;

/// Type of filesystem and of its backing store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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

    /// Returns the filesystem. None for that of the host.
    fn filesystem(self) -> Option<Filesystem> {
        match self {
            Kind::Ext4 => Some(Filesystem::Ext4),
            Kind::Xfs => Some(Filesystem::Xfs),
            Kind::Btrfs => Some(Filesystem::Btrfs),
            Kind::Host => None,
            _ => Some(Filesystem::Volume),
        }
    }

    /// Returns the options that create a volume and mount it.
    fn options(self) -> [&'static [&'static str]; 2] {
        match self {
            Kind::File => [&["--file"], &[]],
            Kind::Sections => [&["--section", "1M"], &[]],
            Kind::Polite => [&[], &["--discard", "polite"]],
            Kind::Dispatch => [&[], &["--discard", "dispatch"]],
            _ => [&[], &[]],
        }
    }
}

/// Mounted filesystem. Unmounted and removed by `Place::end` or when dropped.
pub struct Place {
    kind: Kind,
    tuff: PathBuf,
    store: PathBuf,
    point: PathBuf,
    /// Loop device of a filesystem of the kernel.
    device: Option<Device>,
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
            device: None,
            mounted: false,
            ended: false,
        };
        std::fs::create_dir(&place.point).at("create", &place.point)?;
        match kind.filesystem() {
            Some(Filesystem::Volume) => {
                let create = ["volume", "create", "--size", &SIZE.to_string()];
                place.volume(&create, kind.options()[0], &[&place.store])?;
            }
            Some(_) => {
                let file = File::create_new(&place.store);
                file.and_then(|file| file.set_len(SIZE))
                    .at("create", &place.store)?;
                place.device = Some(Device::attach(&place.store, &[])?);
                place.on(|on| on.make())?;
            }
            None => {}
        }
        place.mount()?;
        Ok(place)
    }

    /// Runs a command of `tuff`.
    fn volume(&self, verb: &[&str], options: &[&str], paths: &[&Path]) -> Result<()> {
        let words = verb.iter().chain(options).map(OsStr::new);
        let paths = paths.iter().map(|path| path.as_os_str());
        helper::output(&self.tuff, words.chain(paths)).map(|_| ())
    }

    /// Calls `what` with the filesystem on its device.
    fn on(&self, what: impl FnOnce(&filesystem::Place<'_>) -> Result<(), String>) -> Result<()> {
        let Some(kind) = self.kind.filesystem() else {
            return Ok(());
        };
        let device = self.device.as_ref().map_or(&*self.store, Device::path);
        let done = what(&filesystem::Place {
            kind,
            tuff: &self.tuff,
            device: &device.to_string_lossy(),
            point: &self.point.to_string_lossy(),
        });
        done.map_err(Error::Command)
    }

    /// Mounts it again after [`Place::unmount`]. [`Place::make`] returns a mounted place.
    pub(crate) fn mount(&mut self) -> Result<()> {
        match self.kind.filesystem() {
            Some(Filesystem::Volume) => {
                let paths: [&Path; 2] = [&self.store, &self.point];
                self.volume(&["volume", "mount"], self.kind.options()[1], &paths)?;
            }
            _ => self.on(|on| on.mount(""))?,
        }
        self.mounted = true;
        Ok(())
    }

    /// Unmounts it and keeps its content. Does nothing if it is not mounted.
    pub(crate) fn unmount(&mut self) -> Result<()> {
        match std::mem::replace(&mut self.mounted, false) {
            true => self.on(|on| on.unmount()),
            false => Ok(()),
        }
    }

    /// Runs the checker of the filesystem, which must be unmounted. Returns an error if the checker fails.
    pub(crate) fn check(&self) -> Result<()> {
        self.on(|on| on.check().unwrap_or(Ok(())))
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
        of(&self.store).at("stat", &self.store)
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
        self.device = None;
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
