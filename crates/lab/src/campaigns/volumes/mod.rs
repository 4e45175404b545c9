//! Performance of volumes compared with ext4 on a loop device and with the host's filesystem.
//!
//! ```text
//!  round 1:  volume in zone files: create, mount, every load, unmount;  volume in one file;  ext4 on a loop device;  host
//!  round 2:  ...
//! ```
//!
//! All places store their data on the same host, and only one exists at a time. The loads are the same in
//! every place. A time is recorded only after the content was compared with the written bytes.

pub mod load;
pub mod place;
pub(crate) mod report;

use crate::measure::stop;
use crate::measure::workspace::{self, Work};
use crate::record::{Header, Line, Sample, labels};
use crate::{Error, Result};
use load::{GROUPS, Group};
use place::{PLACES, Place};
use std::path::PathBuf;

/// Program, selection and number of rounds of a measurement.
#[derive(Clone, Debug)]
pub struct Conditions {
    /// Path of the program `tuff`.
    pub tuff: PathBuf,
    /// Number of rounds over all places.
    pub rounds: u32,
    /// Selects groups of loads whose name contains this text. None selects all.
    pub only: Option<String>,
    /// Folder on the measured host for volumes and mount points.
    pub work: PathBuf,
}

impl Conditions {
    /// Returns the selected groups of loads.
    ///
    /// # Errors
    /// `Usage` if nothing is selected or the user is not root.
    pub fn plan(&self) -> Result<Vec<Group>> {
        let only = self.only.as_deref().unwrap_or_default();
        let chosen = GROUPS.iter().filter(|(name, _)| name.contains(only));
        let plan: Vec<Group> = chosen.map(|(_, group)| *group).collect();
        if plan.is_empty() {
            let names = GROUPS.map(|(name, _)| name).join(", ");
            return Err(Error::Usage(format!(
                "--only matches no group of loads; available: {names}"
            )));
        }
        if !rustix::process::geteuid().is_root() {
            return Err(Error::Usage(
                "the loop device for ext4 needs root".to_owned(),
            ));
        }
        Ok(plan)
    }
}

/// Runs all rounds. Wrong content is an error in every place, because without ext4 and the host there is no
/// comparison.
pub fn run(conditions: &Conditions, emit: &mut dyn FnMut(&Line) -> Result<()>) -> Result<()> {
    let plan = conditions.plan()?;
    let work = Work::create(&conditions.work)?;
    let settings = [
        ("host", workspace::filesystem(work.folder())?),
        ("rounds", conditions.rounds.to_string()),
    ];
    emit(&Line::Header(Header::here("volumes", settings)?))?;
    for bar in report::bars() {
        emit(&Line::Bar(bar))?;
    }
    for round in 1..=conditions.rounds {
        for kind in PLACES {
            let place = Place::make(kind, &work, &conditions.tuff)?;
            for group in &plan {
                stop::check()?;
                for (load, cost) in group(place.point())? {
                    emit(&Line::Sample(Sample {
                        cell: labels([("load", load.name()), ("place", kind.name())]),
                        round,
                        values: [("cost_ns".to_owned(), cost)].into(),
                    }))?;
                }
            }
            place.end()?;
        }
    }
    Ok(())
}
