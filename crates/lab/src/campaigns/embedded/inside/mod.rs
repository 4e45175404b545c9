//! Part of the test that runs inside the guest.

mod cut;
mod fault;
mod figures;
mod job;

pub(super) use figures::fill_directory;
pub use job::{Answer, Job};

use crate::Result;
use crate::guest::inside::Port;

/// Runs a job.
pub fn run(job: &Job, port: &mut Port) -> Result<()> {
    match job {
        Job::Measure {
            kind,
            fill,
            tuff,
            faults,
        } => {
            let mut test = figures::Test { kind: *kind, port };
            test.run(*fill, tuff, faults)
        }
        Job::Load { kind, seed, synced } => cut::load(*kind, *seed, *synced, port),
        Job::Judge {
            kind,
            seed,
            synced,
            operations,
        } => {
            let (outcome, found) = cut::judge(*kind, *seed, *synced, *operations)?;
            port.send(&Answer::Judged(outcome, found))
        }
    }
}
