//! `tuff-lab sample`: runs one command and measures its resource usage. Internal helper of
//! measurements.

use std::ffi::OsString;
use std::path::PathBuf;
use tuff_lab::{Error, Result, measure};

/// Run one command and print its resource usage
#[derive(clap::Args)]
pub(crate) struct Args {
    /// File for the output of the command
    #[arg(long)]
    said: PathBuf,
    /// Control group to join
    #[arg(long)]
    cgroup: Option<PathBuf>,
    /// Command with its arguments
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

pub(crate) fn run(args: &Args) -> Result<bool> {
    let (program, arguments) = args
        .command
        .split_first()
        .ok_or_else(|| Error::Usage("no command given".to_owned()))?;
    let usage = measure::take(program, arguments, &args.said, args.cgroup.as_deref())?;
    let text = serde_json::to_string(&usage);
    println!(
        "{}",
        text.map_err(|e| Error::Command(format!("cannot encode the sample: {e}")))?
    );
    Ok(true)
}
