//! The fifth room: how fast volumes are, beside ext4 on a loop device and the host's own filesystem.
//!
//! ```text
//!  round 1:  volume in zone files: make it, mount it, every load, unmount;  in one file;  ext4 on a loop device;  the host
//!  round 2:  ...
//! ```
//!
//! All of them lie on the same host, each alone while it is measured. A load is the same everywhere; what it leaves is compared with what it
//! wrote before its time counts.

pub mod load;
pub mod place;
pub mod record;
pub mod report;

use crate::measure::machine::Machine;
use crate::measure::stop;
use crate::measure::workspace::{self, Work};
use crate::{Error, Result};
use load::{GROUPS, Group};
use place::{PLACES, Place};
use record::{Header, Line, Sample};
use std::path::PathBuf;

/// How to measure.
#[derive(Clone, Debug)]
pub struct Conditions {
    /// Our program.
    pub tuff: PathBuf,
    /// How often everything is done.
    pub rounds: u32,
    /// Only groups of loads whose name contains this.
    pub only: Option<String>,
    /// Folder for volumes and mount points, on the host that is measured.
    pub work: PathBuf,
}

impl Conditions {
    /// What will be measured.
    ///
    /// # Errors
    /// If that is nothing, or cannot be done by this user.
    pub fn plan(&self) -> Result<Vec<Group>> {
        let only = self.only.as_deref().unwrap_or_default();
        let chosen = GROUPS.iter().filter(|(name, _)| name.contains(only));
        let plan: Vec<Group> = chosen.map(|(_, group)| *group).collect();
        if plan.is_empty() {
            let names = GROUPS.map(|(name, _)| name).join(", ");
            return Err(Error::Usage(format!(
                "nothing to do: no load has a name that contains what --only says; there are {names}"
            )));
        }
        if !rustix::process::geteuid().is_root() {
            return Err(Error::Usage(
                "ext4 is mounted through a loop device, which takes root".to_owned(),
            ));
        }
        Ok(plan)
    }
}

/// Measures. An answer that is wrong is an error, also of a rival: there is nothing to compare with then.
pub fn run(conditions: &Conditions, emit: &mut dyn FnMut(&Line) -> Result<()>) -> Result<()> {
    let plan = conditions.plan()?;
    let work = Work::create(&conditions.work)?;
    emit(&Line::Header(Header {
        format: crate::record::FORMAT,
        machine: Machine::inspect()?,
        host: workspace::filesystem(work.folder())?,
        rounds: conditions.rounds,
    }))?;
    for round in 1..=conditions.rounds {
        for kind in PLACES {
            let place = Place::make(kind, &work, &conditions.tuff)?;
            for group in &plan {
                stop::check()?;
                for (load, cost) in group(place.point())? {
                    emit(&Line::Sample(Sample {
                        round,
                        place: kind,
                        load,
                        cost,
                    }))?;
                }
            }
            place.end()?;
        }
    }
    Ok(())
}
