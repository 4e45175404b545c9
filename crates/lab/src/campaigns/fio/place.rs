//! Places in which cells run: filesystems that are created for a round, and images that are built once and
//! served.

use super::cell::{FILE, Fio};
use crate::campaigns::serve::server::{Served, Server};
use crate::campaigns::volumes::place::{self, Kind};
use crate::engines::Format;
use crate::measure::helper;
use crate::measure::workspace::{self, Work};
use crate::options::Options;
use crate::report::table::Figure;
use crate::{At, Error, Result};
use rustix::fs::statvfs;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Implementation that serves the requests of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Where {
    /// A volume in zone files.
    Zones,
    /// A volume in one file.
    File,
    /// ext4 through a loop device.
    Ext4,
    /// XFS through a loop device.
    Xfs,
    /// Btrfs through a loop device.
    Btrfs,
    /// An EROFS image through `tuff mount`.
    Tuff,
    /// The same image through the kernel.
    Kernel,
    /// The same image through erofsfuse.
    Erofsfuse,
    /// A SquashFS image through the kernel.
    Squashfs,
}

/// All places in the order of a round.
pub const PLACES: [Where; 9] = [
    Where::Zones,
    Where::File,
    Where::Ext4,
    Where::Xfs,
    Where::Btrfs,
    Where::Tuff,
    Where::Kernel,
    Where::Erofsfuse,
    Where::Squashfs,
];

impl Where {
    /// Name in tables, which `--place` matches.
    pub const fn name(self) -> &'static str {
        match self {
            Where::Zones => "volume, zone files",
            Where::File => "volume, one file",
            Where::Ext4 => "ext4",
            Where::Xfs => "XFS",
            Where::Btrfs => "Btrfs",
            Where::Tuff => "image, tuff mount",
            Where::Kernel => "image, kernel EROFS",
            Where::Erofsfuse => "image, erofsfuse",
            Where::Squashfs => "image, kernel SquashFS",
        }
    }

    /// True if this project implements the place.
    pub fn is_ours(self) -> bool {
        matches!(self, Where::Zones | Where::File | Where::Tuff)
    }

    /// True if the place supports writes.
    pub fn is_writable(self) -> bool {
        self.kind().is_some()
    }

    fn kind(self) -> Option<Kind> {
        match self {
            Where::Zones => Some(Kind::Zones),
            Where::File => Some(Kind::File),
            Where::Ext4 => Some(Kind::Ext4),
            Where::Xfs => Some(Kind::Xfs),
            Where::Btrfs => Some(Kind::Btrfs),
            Where::Tuff | Where::Kernel | Where::Erofsfuse | Where::Squashfs => None,
        }
    }
}

/// Time to mount a place with the file in it.
pub(super) const MOUNT: Figure = Figure::new("mount_ms", "mount, ms", 1.0);
/// Time of the checker with the file in the place.
pub(super) const CHECK: Figure = Figure::new("check_ms", "check, ms", 1.0);
/// Space on the host when a place is empty.
pub(super) const EMPTY: Figure = Figure::new("empty_kib", "KiB on the host when empty", 1.0);
/// Space of the 4 GiB that is unavailable when a place is empty.
pub(super) const WITHHELD: Figure = Figure::new("withheld_kib", "KiB of 4 GiB unavailable", 1.0);
/// Ratio of an image's size to the file's size.
pub(super) const IMAGE: Figure = Figure::new("image_ratio", "image size / file size", 1.0);

/// Paths and settings that all places share.
pub(super) struct Setting<'a> {
    pub(super) options: &'a Options,
    pub(super) tuff: &'a Path,
    pub(super) work: &'a Work,
    pub(super) fio: &'a Fio<'a>,
}

/// Mounted place with its costs so far.
pub(super) struct Place<'a> {
    setting: &'a Setting<'a>,
    place: Where,
    held: Held,
    costs: Costs,
}

/// Costs of a place that are measured outside of cells.
pub(super) type Costs = Vec<(Figure, f64)>;

enum Held {
    Disk(place::Place),
    Image(Served, PathBuf),
}

fn ms(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

impl Setting<'_> {
    /// Creates a place with the file in it. The inner error is the reason why the place is not available.
    pub(super) fn make(&self, place: Where) -> Result<Result<Place<'_>, String>> {
        match place.kind() {
            Some(kind) => self.make_disk(place, kind),
            None => self.make_image(place),
        }
    }

    fn make_disk(&self, place: Where, kind: Kind) -> Result<Result<Place<'_>, String>> {
        let disk = match place::Place::make(kind, self.work, self.tuff) {
            Ok(disk) => disk,
            // Programs of another filesystem may be missing.
            Err(e @ (Error::Io(..) | Error::Command(_))) => return Ok(Err(e.to_string())),
            Err(e) => return Err(e),
        };
        let room = statvfs(disk.point()).at("statfs", disk.point())?;
        let offered = room.f_bavail * room.f_frsize;
        rustix::fs::sync();
        let costs = vec![
            (EMPTY, disk.held_bytes()? as f64 / 1024.0),
            (
                WITHHELD,
                place::SIZE.saturating_sub(offered) as f64 / 1024.0,
            ),
        ];
        if let Err(reason) = self.fio.lay_out(disk.point())? {
            return Ok(Err(reason));
        }
        let made = Place {
            setting: self,
            place,
            held: Held::Disk(disk),
            costs,
        };
        Ok(Ok(made))
    }

    fn make_image(&self, place: Where) -> Result<Result<Place<'_>, String>> {
        let (image, format) = match place {
            Where::Squashfs => (self.work.path("squashfs"), Format::Squashfs),
            _ => (self.work.path("erofs"), Format::Erofs),
        };
        let options = self.options;
        let (server, program) = match place {
            Where::Tuff => (Server::Tuff, Some(self.tuff.to_owned())),
            Where::Erofsfuse => match options.program("erofsfuse") {
                Some(program) => (Server::Erofsfuse, Some(program)),
                None => return Ok(Err("erofsfuse is not found".to_owned())),
            },
            _ => (Server::Kernel, None),
        };
        if !image.exists()
            && let Err(reason) = self.build(&image, format)?
        {
            return Ok(Err(reason));
        }
        let point = self.work.path("mount");
        let begun = Instant::now();
        let source = (&*image, format.name());
        let started = Served::start(server, program.as_deref(), &[], source, &point)?;
        let mounted = ms(begun);
        let served = match started {
            Ok(served) => served,
            Err(reason) => return Ok(Err(reason)),
        };
        let file = workspace::length(&point.join(FILE))?;
        let ratio = workspace::length(&image)? as f64 / file.max(1) as f64;
        let costs = vec![(MOUNT, mounted), (IMAGE, ratio)];
        // Cells must read the bytes that fio wrote.
        if let Err(reason) = self.fio.verify(&point)? {
            return Ok(Err(reason));
        }
        let made = Place {
            setting: self,
            place,
            held: Held::Image(served, image),
            costs,
        };
        Ok(Ok(made))
    }

    /// Builds an image of a folder with the file: LZ4 with 64 KiB clusters or blocks. The inner error is a
    /// failure of the builder.
    fn build(&self, image: &Path, format: Format) -> Result<Result<(), String>> {
        let tree = self.work.path("tree");
        if !tree.exists() {
            std::fs::create_dir(&tree).at("create", &tree)?;
            if let Err(reason) = self.fio.lay_out(&tree)? {
                return Ok(Err(reason));
            }
        }
        let paths = [tree.as_os_str(), image.as_os_str()];
        let words = |line: &'static str| line.split(' ').map(OsStr::new);
        let built = match format {
            Format::Erofs => {
                let options = words("build -q -z lz4 -C 64K");
                helper::output(self.tuff, options.chain(paths))
            }
            Format::Squashfs => {
                let options = words("-comp lz4 -b 64K -quiet -no-progress");
                let program = self.options.program("mksquashfs");
                let program = program.unwrap_or_else(|| "mksquashfs".into());
                helper::output(program, paths.into_iter().chain(options))
            }
        };
        Ok(built.map(|_| ()).map_err(|e| e.to_string()))
    }
}

impl Place<'_> {
    /// Path of its mount point.
    pub(super) fn point(&self) -> PathBuf {
        self.setting.work.path("mount")
    }

    /// Unmounts, checks and removes the place. Returns its costs and the complaint of its checker.
    pub(super) fn finish(self) -> Result<(Costs, Option<String>)> {
        let mut costs = self.costs;
        match self.held {
            Held::Disk(mut disk) => {
                disk.unmount()?;
                let begun = Instant::now();
                let checked = disk.check();
                costs.push((CHECK, ms(begun)));
                let begun = Instant::now();
                disk.mount()?;
                costs.push((MOUNT, ms(begun)));
                disk.end()?;
                Ok((costs, checked.err().map(|e| e.to_string())))
            }
            Held::Image(served, image) => {
                drop(served);
                workspace::remove(&self.setting.work.path("mount"))?;
                let options = self.setting.options;
                let checker = match self.place {
                    Where::Tuff => Some((self.setting.tuff.to_owned(), &["check", "-q"][..])),
                    Where::Erofsfuse => options.program("fsck.erofs").map(|fsck| (fsck, &[][..])),
                    _ => None,
                };
                let Some((program, words)) = checker else {
                    return Ok((costs, None));
                };
                let begun = Instant::now();
                let words = words.iter().map(OsStr::new);
                match helper::output(program, words.chain([image.as_os_str()])) {
                    Ok(_) => {
                        costs.push((CHECK, ms(begun)));
                        Ok((costs, None))
                    }
                    Err(e) => Ok((costs, Some(e.to_string()))),
                }
            }
        }
    }
}
