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
mod conditions;
mod place;
pub(crate) mod report;

use crate::campaigns::serve::program::version;
use crate::measure::stop;
use crate::measure::workspace::{self, Work};
use crate::record::{Header, Labels, Line, Note, Sample, labels};
use crate::report::table::Figure;
use crate::{Error, Result};
use cell::{Cell, Fio};
use place::Setting;
use std::path::PathBuf;

pub use conditions::Conditions;
pub use place::{PLACES, Where};

impl Conditions {
    /// Returns the selected places and cells.
    ///
    /// # Errors
    /// `Usage` if nothing is selected or the user is not root.
    pub fn plan(&self) -> Result<(Vec<Where>, Vec<Cell>)> {
        let wanted = |only: &Option<String>, name: &str| {
            let only = only.as_deref().unwrap_or_default();
            name.to_lowercase().contains(&only.to_lowercase())
        };
        let places = PLACES
            .into_iter()
            .filter(|place| wanted(&self.place, place.name()));
        let cells = cell::all()
            .into_iter()
            .filter(|cell| wanted(&self.only, &cell.name()));
        let (places, cells): (Vec<Where>, Vec<Cell>) = (places.collect(), cells.collect());
        if places.is_empty() || cells.is_empty() {
            return Err(Error::Usage(format!(
                "--place or --only matches nothing; places: {}; example of a cell: '{}'",
                PLACES.map(Where::name).join("; "),
                cell::all()[0].name()
            )));
        }
        if !rustix::process::geteuid().is_root() {
            return Err(Error::Usage("loop devices and mounts need root".to_owned()));
        }
        Ok((places, cells))
    }

    fn program(&self, name: &str) -> Option<&PathBuf> {
        let found = self.programs.iter().find(|(known, _)| known == name);
        found.map(|(_, path)| path)
    }
}

/// Runs all rounds. Returns true if no cell of a volume or of `tuff mount` failed. Another filesystem that
/// fails is left out of that cell.
pub fn run(conditions: &Conditions, emit: &mut dyn FnMut(&Line) -> Result<()>) -> Result<bool> {
    let (places, cells) = conditions.plan()?;
    let need = |name: &str| {
        conditions.program(name).ok_or_else(|| {
            Error::Usage(format!(
                "program {name} is not found; pass its path as --tool {name}=PATH"
            ))
        })
    };
    let (tuff, fio) = (need("tuff")?, need("fio")?);
    let work = Work::create(&conditions.work)?;
    let programs = conditions.programs.iter().map(|(_, path)| version(path));
    let settings = [
        ("host", workspace::filesystem(work.folder())?),
        ("programs", programs.collect::<Vec<_>>().join("; ")),
        ("file, MiB", conditions.file_mib.to_string()),
        ("rounds", conditions.rounds.to_string()),
    ];
    emit(&Line::Header(Header::here("fio", settings)?))?;
    let fio = Fio::new(fio, &work, conditions.file_mib);
    let setting = Setting::new(conditions, tuff, &work, &fio);
    let mut ours_fine = true;
    for round in 1..=conditions.rounds {
        for &place in &places {
            stop::check()?;
            let alone = labels([("place", place.name())]);
            let made = match setting.make(place)? {
                Ok(made) => made,
                Err(reason) => {
                    ours_fine &= !place.is_ours();
                    emit(&failure(alone, reason))?;
                    continue;
                }
            };
            for (number, cell) in cells.iter().enumerate() {
                stop::check()?;
                if cell.writes() && !place.is_writable() {
                    continue;
                }
                let name = cell.name();
                let group = match place.is_writable() {
                    true => report::DISKS,
                    false => report::IMAGES,
                };
                let cell_of = labels([
                    ("group", group),
                    ("place", place.name()),
                    ("workload", &name),
                ]);
                // Each cell writes bytes that no other cell writes.
                let seed = u64::from(round) * 1000 + number as u64 + 1;
                match fio.measure(cell, &made.point(), seed)? {
                    Ok(figures) => emit(&sample(cell_of, round, &figures))?,
                    Err(reason) => {
                        ours_fine &= !place.is_ours();
                        let cell = labels([("place", place.name()), ("workload", &name)]);
                        emit(&failure(cell, reason))?;
                    }
                }
            }
            let (costs, complaint) = made.finish()?;
            if let Some(reason) = complaint {
                ours_fine &= !place.is_ours();
                emit(&failure(alone.clone(), reason))?;
            }
            emit(&sample(alone, round, &costs))?;
        }
    }
    Ok(ours_fine)
}

fn sample(cell: Labels, round: u32, figures: &[(Figure, f64)]) -> Line {
    let values = figures
        .iter()
        .map(|(f, value)| (f.value.to_owned(), *value));
    let values = values.collect();
    Line::Sample(Sample {
        cell,
        round,
        values,
    })
}

fn failure(cell: Labels, text: String) -> Line {
    Line::Failure(Note { cell, text })
}

impl Where {
    /// True if this project implements the place.
    pub fn is_ours(self) -> bool {
        matches!(self, Where::Zones | Where::File | Where::Tuff)
    }
}
