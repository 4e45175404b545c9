//! Matrix of fio workloads: compares volumes with ext4, XFS and Btrfs on loop devices, and images with
//! SquashFS.
//!
//! ```text
//!  round 1:  volume in zone files: create, mount, lay out a file, every cell, unmount, check, mount
//!            volume in one file;  ext4;  XFS;  Btrfs
//!            an image through tuff mount: the cells that read;  the kernel's EROFS;  erofsfuse;  the kernel's SquashFS
//!  round 2:  ...
//! ```
//!
//! A cell is one run of fio: sequential or random, small or large requests, direct or buffered, reads, writes
//! or both. The data of every place is in the page cache of the host. Buffered reads start with an empty page
//! cache of the mount. After a cell that writes, the whole file is read. Every block must have a valid
//! checksum, and the number of changed blocks must equal the number of written ones.

pub mod cell;
mod place;
pub(crate) mod report;

use crate::Result;
use crate::engines::version;
use crate::measure::stop;
use crate::measure::workspace::{self, Work};
use crate::options::{Emit, Options, need_root, select};
use crate::record::{Header, Line, labels};
use cell::{Cell, Fio};
use place::Setting;

pub use place::{PLACES, Where};

/// Programs of the campaign.
const PROGRAMS: [&str; 5] = ["tuff", "fio", "erofsfuse", "mksquashfs", "fsck.erofs"];

/// Measure with fio: volumes compared with ext4, XFS and Btrfs, images compared with SquashFS
///
/// Workloads are sequential and random, with small and large requests, direct and buffered, reading, writing and mixed. Also
/// measures request latency, CPU time of the machine, the duration of mounts and checks, and the size of an empty filesystem.
/// Writes a record and prints its tables. Requires root for the loop devices.
#[derive(Clone, Debug, clap::Args)]
pub struct Conditions {
    /// Number of rounds of each measurement
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), default_value_t = 5)]
    pub rounds: u32,
    /// Measure only targets whose name contains TEXT, such as volume, ext4 or image
    #[arg(long, value_name = "TEXT")]
    pub place: Option<String>,
    /// Measure only workloads whose name contains TEXT, such as random or direct
    #[arg(long, value_name = "TEXT")]
    pub only: Option<String>,
    /// Size of the file, in MiB
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=2048), default_value_t = 256)]
    pub file: u64,
    /// Paths of programs, and folders of images and records.
    #[command(flatten)]
    pub options: Options,
}

/// Runs all rounds. Returns true if no cell of a volume or of `tuff mount` failed. Another filesystem that
/// fails is left out of that cell.
pub fn run(conditions: &Conditions, emit: Emit<'_>) -> Result<bool> {
    let (place, only) = (conditions.place.as_ref(), conditions.only.as_ref());
    let places = select(&PLACES, |place| place.name.to_owned(), "--place", place)?;
    let cells = select(&cell::all(), |cell: Cell| cell.name(), "--only", only)?;
    need_root("loop devices and mounts")?;
    let options = &conditions.options;
    let (tuff, fio) = (options.need("tuff")?, options.need("fio")?);
    let work = Work::create(options.work())?;
    let programs = PROGRAMS.iter().filter_map(|name| options.program(name));
    let programs: Vec<String> = programs.map(|path| version(&path)).collect();
    let settings = [
        ("host", workspace::filesystem(work.folder())?),
        ("programs", programs.join("; ")),
        ("file, MiB", conditions.file.to_string()),
        ("rounds", conditions.rounds.to_string()),
    ];
    emit(&Line::Header(Header::here("fio", settings)?))?;
    let setting = Setting {
        options,
        tuff: &tuff,
        work: &work,
        fio: &Fio::new(&fio, &work, conditions.file),
    };
    let mut ours_fine = true;
    for round in 1..=conditions.rounds {
        for &place in &places {
            stop::check()?;
            let alone = labels([("place", place.name)]);
            let made = match setting.make(place)? {
                Ok(made) => made,
                Err(reason) => {
                    ours_fine &= !place.is_ours();
                    emit(&Line::failure(alone, reason))?;
                    continue;
                }
            };
            for (number, cell) in cells.iter().enumerate() {
                stop::check()?;
                if cell.writes() && !place.is_writable() {
                    continue;
                }
                let name = cell.name();
                // Each cell writes bytes that no other cell writes.
                let seed = u64::from(round) * 1000 + number as u64 + 1;
                match setting.fio.measure(cell, &made.point(), seed)? {
                    Ok(figures) => {
                        let group = match place.is_writable() {
                            true => report::DISKS,
                            false => report::IMAGES,
                        };
                        let cell =
                            labels([("group", group), ("place", place.name), ("workload", &name)]);
                        let values = figures.map(|(figure, value)| (figure.value, value));
                        emit(&Line::sample(cell, round, values))?;
                    }
                    Err(reason) => {
                        ours_fine &= !place.is_ours();
                        let cell = labels([("place", place.name), ("workload", &name)]);
                        emit(&Line::failure(cell, reason))?;
                    }
                }
            }
            let (costs, complaint) = made.finish()?;
            if let Some(reason) = complaint {
                ours_fine &= !place.is_ours();
                emit(&Line::failure(alone.clone(), reason))?;
            }
            let values = costs
                .into_iter()
                .map(|(figure, value)| (figure.value, value));
            emit(&Line::sample(alone, round, values))?;
        }
    }
    Ok(ours_fine)
}
