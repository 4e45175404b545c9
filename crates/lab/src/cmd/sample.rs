//! `tuff-lab sample`: one command, and what it used. Measurements run it; it is not for users.

use std::ffi::OsString;
use std::path::PathBuf;
use tuff_lab::{Error, Result, measure};

/// Run one command and print what it used
#[derive(clap::Args)]
pub(crate) struct Args {
    /// File for what the command says
    #[arg(long)]
    said: PathBuf,
    /// Control group to join
    #[arg(long)]
    cgroup: Option<PathBuf>,
    /// The command
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let (program, arguments) = args
        .command
        .split_first()
        .ok_or_else(|| Error::Usage("a command is needed".to_owned()))?;
    let usage = measure::take(program, arguments, &args.said, args.cgroup.as_deref())?;
    let text = serde_json::to_string(&usage);
    println!(
        "{}",
        text.map_err(|e| Error::Command(format!("the sample cannot be written: {e}")))?
    );
    Ok(true)
}
