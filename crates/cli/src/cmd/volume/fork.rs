//! `tuff volume fork`: makes a writable copy of a branch.

use super::branch::directory;
use super::failure::{At, Result};
use super::open::{VolumeArgs, now};
use std::process::ExitCode;

/// Make a writable copy of a volume in milliseconds
///
/// The fork is a branch of the volume: it shares all blocks with the branch it comes from, and takes space only for what
/// changes. Both can be mounted and written at once (tuff volume mount --branch NAME). Only a volume in a directory can be
/// forked.
///
/// A killed fork has left no branch, and can be repeated. This verb needs the branch that is forked, not the others.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    volume: VolumeArgs,
    /// Name of the fork
    name: String,
    /// Fork this snapshot instead of the current state
    #[arg(long, value_name = "NAME")]
    snapshot: Option<String>,
}

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let dir = directory(&args.volume.path)?;
    let (from, snapshot) = (args.volume.branch.as_deref(), args.snapshot.as_deref());
    tuff_iplfs::fork(dir, from, &args.name, snapshot, now()).at(dir.display())?;
    Ok(ExitCode::SUCCESS)
}
