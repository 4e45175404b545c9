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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    /// Name of the table column.
    pub name: &'static str,
    /// Filesystem: a volume, or one of the kernel in a file, through a loop device. None for that of the host.
    filesystem: Option<Filesystem>,
    /// Options that create a volume, and those that mount it.
    options: [&'static [&'static str]; 2],
    /// True for a volume on a loop device.
    on_device: bool,
}

impl Kind {
    /// True for a volume.
    pub fn is_ours(self) -> bool {
        self.filesystem == Some(Filesystem::Volume)
    }
}

const fn kind(name: &'static str, filesystem: Option<Filesystem>) -> Kind {
    Kind {
        name,
        filesystem,
        options: [&[], &[]],
        on_device: false,
    }
}

const fn volume(name: &'static str, options: [&'static [&'static str]; 2]) -> Kind {
    Kind {
        options,
        ..kind(name, Some(Filesystem::Volume))
    }
}

/// A volume on a loop device, whose server stays awake for a while after a request or not.
const fn awake(name: &'static str, options: &'static [&'static str]) -> Kind {
    Kind {
        on_device: true,
        ..volume(name, [&[], options])
    }
}

/// A volume in zone files.
pub const ZONES: Kind = volume("volume, zone files", [&[], &[]]);
/// A volume in one file.
pub const FILE: Kind = volume("volume, one file", [&["--file"], &[]]);
/// ext4 in a file.
pub const EXT4: Kind = kind("ext4, loop device", Some(Filesystem::Ext4));
/// XFS in a file.
pub const XFS: Kind = kind("XFS, loop device", Some(Filesystem::Xfs));
/// Btrfs in a file.
pub const BTRFS: Kind = kind("Btrfs, loop device", Some(Filesystem::Btrfs));
/// The filesystem of the host.
pub const HOST: Kind = kind("host", None);
/// Places of this measurement in the order of a round.
pub const PLACES: [Kind; 4] = [ZONES, FILE, EXT4, HOST];
/// Places that compare dispatches of discards and sizes of sections, which are of 1 GiB elsewhere.
pub const DISCARDS: [Kind; 4] = [
    ZONES,
    volume("volume, polite discards", [&[], &["--discard", "polite"]]),
    volume(
        "volume, dispatched discards",
        [&[], &["--discard", "dispatch"]],
    ),
    volume("volume, sections of 1 MiB", [&["--section", "1M"], &[]]),
];

/// Places of one loop device each, for trees of small files.
pub const DEVICES: [Kind; 4] = [
    awake("volume, awake auto", &["--keep-awake", "auto"]),
    awake("volume, awake off", &["--keep-awake", "off"]),
    awake("volume, awake on", &["--keep-awake", "on"]),
    EXT4,
];

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
        match kind.filesystem {
            Some(Filesystem::Volume) if !kind.on_device => {
                let create = ["volume", "create", "--size", &SIZE.to_string()];
                place.volume(&create, kind.options[0], &[&place.store])?;
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
        let Some(kind) = self.kind.filesystem else {
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
        match self.kind.filesystem {
            Some(Filesystem::Volume) => {
                let store = self.device.as_ref().map(|device| Path::new(device.path()));
                let paths: [&Path; 2] = [store.unwrap_or(&self.store), &self.point];
                self.volume(&["volume", "mount"], self.kind.options[1], &paths)?;
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
        fn allocated(path: &Path) -> std::io::Result<u64> {
            use std::os::unix::fs::MetadataExt;
            let found = std::fs::symlink_metadata(path)?;
            let mut bytes = found.blocks() * 512;
            if found.is_dir() {
                for entry in std::fs::read_dir(path)? {
                    bytes += allocated(&entry?.path())?;
                }
            }
            Ok(bytes)
        }
        allocated(&self.store).at("stat", &self.store)
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
