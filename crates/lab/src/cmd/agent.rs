//! `tuff-lab agent`: runs a job as the first process of a guest.

use serde::Deserialize;
use tuff_lab::Result;
use tuff_lab::campaigns::{cleaning, embedded, kernel};
use tuff_lab::guest::inside;

/// Jobs of all campaigns. Their fields tell them apart.
#[derive(Deserialize)]
#[serde(untagged)]
enum Job {
    Cleaning(cleaning::inside::Job),
    Embedded(embedded::inside::Job),
    Kernel(kernel::Job),
}

pub(crate) fn run() -> Result<bool> {
    inside::run(|job, port| match job {
        Job::Cleaning(job) => cleaning::inside::run(&job, port),
        Job::Embedded(job) => embedded::inside::run(&job, port),
        Job::Kernel(job) => kernel::inside(&job, port),
    })?;
    Ok(true)
}
