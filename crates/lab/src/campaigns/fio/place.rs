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
#[derive(Clone, Copy, Debug)]
pub struct Where {
    /// Name in tables, which `--place` matches.
    pub name: &'static str,
    target: Target,
}

#[derive(Clone, Copy, Debug)]
enum Target {
    /// A filesystem of its own.
    Disk(Kind),
    /// An image through a server.
    Image(Server, Format),
}

/// All places in the order of a round.
pub const PLACES: [Where; 9] = [
    disk("volume, zone files", place::ZONES),
    disk("volume, one file", place::FILE),
    disk("ext4", place::EXT4),
    disk("XFS", place::XFS),
    disk("Btrfs", place::BTRFS),
    image("image, tuff mount", Server::Tuff, Format::Erofs),
    image("image, kernel EROFS", Server::Kernel, Format::Erofs),
    image("image, erofsfuse", Server::Erofsfuse, Format::Erofs),
    image("image, kernel SquashFS", Server::Kernel, Format::Squashfs),
];

const fn disk(name: &'static str, kind: Kind) -> Where {
    let target = Target::Disk(kind);
    Where { name, target }
}

const fn image(name: &'static str, server: Server, format: Format) -> Where {
    let target = Target::Image(server, format);
    Where { name, target }
}

impl Where {
    /// True if this project implements the place.
    pub fn is_ours(self) -> bool {
        match self.target {
            Target::Disk(kind) => kind.is_ours(),
            Target::Image(server, _) => server == Server::Tuff,
        }
    }

    /// True if the place supports writes.
    pub fn is_writable(self) -> bool {
        matches!(self.target, Target::Disk(_))
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
        match place.target {
            Target::Disk(kind) => self.make_disk(place, kind),
            Target::Image(server, format) => self.make_image(place, server, format),
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

    fn make_image(
        &self,
        place: Where,
        server: Server,
        format: Format,
    ) -> Result<Result<Place<'_>, String>> {
        let image = self.work.path(format.name());
        let program = match server.program() {
            None => None,
            Some(name) => match self.options.program(name) {
                None => return Ok(Err(format!("{name} is not found"))),
                found => found,
            },
        };
        if !image.exists()
            && let Err(reason) = self.build(&image, format)?
        {
            return Ok(Err(reason));
        }
        let point = self.work.path("mount");
        let begin = Instant::now();
        let source = (&*image, format.name());
        let started = Served::start(server, program.as_deref(), &[], source, &point)?;
        let mounted = ms(begin);
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
            Format::Dwarfs => return Ok(Err("DwarFS is not part of this campaign".to_owned())),
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
                let begin = Instant::now();
                let checked = disk.check();
                costs.push((CHECK, ms(begin)));
                let begin = Instant::now();
                disk.mount()?;
                costs.push((MOUNT, ms(begin)));
                disk.end()?;
                Ok((costs, checked.err().map(|e| e.to_string())))
            }
            Held::Image(served, image) => {
                drop(served);
                workspace::remove(&self.setting.work.path("mount"))?;
                let options = self.setting.options;
                let checker = match self.place.target {
                    Target::Image(Server::Tuff, _) => {
                        Some((self.setting.tuff.to_owned(), &["check", "-q"][..]))
                    }
                    Target::Image(Server::Erofsfuse, _) => {
                        options.program("fsck.erofs").map(|fsck| (fsck, &[][..]))
                    }
                    _ => None,
                };
                let Some((program, words)) = checker else {
                    return Ok((costs, None));
                };
                let begin = Instant::now();
                let words = words.iter().map(OsStr::new);
                match helper::output(program, words.chain([image.as_os_str()])) {
                    Ok(_) => {
                        costs.push((CHECK, ms(begin)));
                        Ok((costs, None))
                    }
                    Err(e) => Ok((costs, Some(e.to_string()))),
                }
            }
        }
    }
}
