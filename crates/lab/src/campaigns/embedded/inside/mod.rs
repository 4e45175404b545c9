//! Part of the test that runs inside the guest.

mod cut;
mod fault;
mod figures;
mod job;

pub(super) use figures::fill_directory;
pub use job::{Answer, FAULTS, FLASH_FAULTS, Fault, Job, Round};

use crate::engines::filesystem::Place;
use crate::guest::inside::{POINT, Port, disk};
use crate::{Error, Result};
use std::path::Path;

/// Runs a job and sends its answers.
pub fn run(job: &Job, port: &mut Port) -> Result<()> {
    let (kind, tuff) = match job {
        Job::Measure { kind, tuff, .. } => (*kind, tuff.as_str()),
        Job::Flash { kind, .. } => (*kind, ""),
        Job::Cut {
            kind,
            started,
            rounds,
        } => return cut::run(*kind, *started, rounds, port),
    };
    let (root, large) = match (job, kind.is_flash()) {
        (Job::Measure { .. }, true) => ("0".to_owned(), "1".to_owned()),
        (Job::Measure { .. }, false) => (disk(1), disk(2)),
        _ => ("0".to_owned(), "0".to_owned()),
    };
    let place = Place {
        kind,
        tuff: Path::new(tuff),
        device: &large,
        point: POINT,
    };
    let mut test = figures::Test { place, port };
    let done = match job {
        Job::Measure { fill, faults, .. } => test.run(&root, *fill, faults),
        Job::Flash { fault, .. } => test.faults(&[*fault]),
        Job::Cut { .. } => Ok(()),
    };
    done.map_err(Error::Command)
}
