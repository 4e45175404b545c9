//! `tuff-lab inside`: starts one program in another root directory. Internal helper of
//! measurements.

use tuff_lab::campaigns::start::inside;
use tuff_lab::{Error, Result};

/// Start one program as described by a job on standard input, and print the result
#[derive(clap::Args)]
pub(crate) struct Args {}

pub(crate) fn run(_: &Args) -> Result<bool> {
    let order = serde_json::from_reader(std::io::stdin())
        .map_err(|e| Error::Usage(format!("cannot parse the job: {e}")))?;
    let started = inside::start(&order)?;
    let text = serde_json::to_string(&started);
    println!(
        "{}",
        text.map_err(|e| Error::Command(format!("cannot encode the result: {e}")))?
    );
    Ok(true)
}
