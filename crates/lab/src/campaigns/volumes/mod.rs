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
mod trees;

use crate::Result;
use crate::measure::stop;
use crate::measure::workspace::{self, Work};
use crate::options::{Emit, Options, need_root, select};
use crate::record::{Header, Line, labels};
use load::GROUPS;
use place::{DEVICES, DISCARDS, PLACES, Place};
use std::path::PathBuf;
use std::time::Duration;
use trees::Trees;

/// Time after which discarded space has returned to the host.
const RETURN_TIME: Duration = Duration::from_secs(10);

/// Measure volumes, compared with ext4 on a loop device and the filesystem of the host
///
/// Workloads create and delete small files, write and read a large file, overwrite pages with fdatasync, and measure latency with
/// concurrent writers. Writes a record and prints its table. Requires root for the loop device.
#[derive(Clone, Debug, clap::Args)]
pub struct Conditions {
    /// Number of rounds of each measurement
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), default_value_t = 5)]
    pub rounds: u32,
    /// Run only workloads of groups whose name contains TEXT: files, stream, overwrite, fdatasync, beside
    #[arg(long, value_name = "TEXT")]
    pub only: Option<String>,
    /// Compare dispatches of discards and sizes of sections instead of filesystems
    #[arg(long)]
    pub discards: bool,
    /// Compare volumes and ext4 on loop devices with the files of this folder: unpack, create, delete, clone
    #[arg(long, value_name = "DIR", conflicts_with_all = ["discards", "only"])]
    pub tree: Option<PathBuf>,
    /// Paths of programs, and folders of images and records.
    #[command(flatten)]
    pub options: Options,
}

/// Runs all rounds. Wrong content is an error in every place, because without ext4 and the host there is no
/// comparison.
pub fn run(conditions: &Conditions, emit: Emit<'_>) -> Result<bool> {
    let only = conditions.only.as_ref();
    let plan = select(&GROUPS, |(name, _)| name.to_owned(), "--only", only)?;
    need_root("the loop device for ext4")?;
    let tuff = conditions.options.need("tuff")?;
    let work = Work::create(conditions.options.work())?;
    let settings = [
        ("host", workspace::filesystem(work.folder())?),
        ("rounds", conditions.rounds.to_string()),
    ];
    emit(&Line::Header(Header::here("volumes", settings)?))?;
    let trees = conditions.tree.as_ref();
    let trees = trees.map(|tree| Trees::prepare(&work, tree)).transpose()?;
    if !conditions.discards && trees.is_none() {
        for bar in report::bars() {
            emit(&Line::Bar(bar))?;
        }
    }
    let places = match (conditions.discards, &trees) {
        (true, _) => DISCARDS,
        (_, Some(_)) => DEVICES,
        _ => PLACES,
    };
    for round in 1..=conditions.rounds {
        for kind in places {
            let mut place = Place::make(kind, &work, &tuff)?;
            let mut sample = |label: &str, text: &str, value: &str, number: f64| {
                let cell = labels([(label, text), ("place", kind.name)]);
                emit(&Line::sample(cell, round, [(value, number)]))
            };
            let mut costs = Vec::new();
            match &trees {
                Some(trees) => costs = trees.run(place.point())?,
                None => {
                    for (_, group) in &plan {
                        stop::check()?;
                        costs.extend(group(place.point())?);
                    }
                }
            }
            for (load, cost) in costs {
                sample("load", load, "cost_ns", cost)?;
            }
            if conditions.discards {
                // Sizes are exact in this type.
                let held = |place: &Place| place.held_bytes().map(|bytes| bytes as f64);
                sample("time", "after the loads", "held_bytes", held(&place)?)?;
                std::thread::sleep(RETURN_TIME);
                sample("time", "ten seconds later", "held_bytes", held(&place)?)?;
                place.unmount()?;
                sample("time", "after the unmount", "held_bytes", held(&place)?)?;
            }
            place.end()?;
        }
    }
    Ok(true)
}
