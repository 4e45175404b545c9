//! Part of the test that runs inside the guest.

mod cut;
mod fault;
mod figures;
mod job;

pub(super) use figures::fill_directory;
pub use job::{Answer, FAULTS, FLASH_FAULTS, Fault, Job, Round};

use crate::Result;
use crate::guest::inside::Port;

/// Runs a job and sends its answers.
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
        Job::Flash { kind, fault } => {
            let mut test = figures::Test { kind: *kind, port };
            test.faults("0", &[*fault])
        }
        Job::Cut {
            kind,
            begun,
            rounds,
        } => cut::run(*kind, *begun, rounds, port),
    }
}
