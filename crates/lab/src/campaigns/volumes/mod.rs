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
use place::{DISCARDS, PLACES, Place};
use std::path::PathBuf;
use std::time::Duration;

/// Time after which discarded space has returned to the host.
const SETTLED: Duration = Duration::from_secs(10);

/// Program, selection and number of rounds of a measurement.
#[derive(Clone, Debug)]
pub struct Conditions {
    /// Path of the program `tuff`.
    pub tuff: PathBuf,
    /// Number of rounds over all places.
    pub rounds: u32,
    /// True to compare dispatches of discards and sizes of sections instead of filesystems.
    pub discards: bool,
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
    if !conditions.discards {
        for bar in report::bars() {
            emit(&Line::Bar(bar))?;
        }
    }
    let places = if conditions.discards {
        DISCARDS
    } else {
        PLACES
    };
    for round in 1..=conditions.rounds {
        for kind in places {
            let mut place = Place::make(kind, &work, &conditions.tuff)?;
            let mut sample = |label: &str, text: &str, value: &str, number: f64| {
                emit(&Line::Sample(Sample {
                    cell: labels([(label, text), ("place", kind.name())]),
                    round,
                    values: [(value.to_owned(), number)].into(),
                }))
            };
            for group in &plan {
                stop::check()?;
                for (load, cost) in group(place.point())? {
                    sample("load", load.name(), "cost_ns", cost)?;
                }
            }
            if conditions.discards {
                // Sizes are exact in this type.
                let held = |place: &Place| place.held_bytes().map(|bytes| bytes as f64);
                sample("time", "after the loads", "held_bytes", held(&place)?)?;
                std::thread::sleep(SETTLED);
                sample("time", "ten seconds later", "held_bytes", held(&place)?)?;
                place.unmount()?;
                sample("time", "after the unmount", "held_bytes", held(&place)?)?;
            }
            place.end()?;
        }
    }
    Ok(())
}
