//! `tuff volume fork`: makes a writable copy of a branch.

use super::branch::directory;
use super::failure::{At, Failure, Result};
use super::live::{mount_point, request};
use super::open::{VolumeArgs, now};
use std::process::ExitCode;
use tuff_mount::volume::Control;

/// Make a writable copy of a volume in milliseconds
///
/// The fork is a branch of the volume: it shares all blocks with the branch it comes from, and takes space only for what
/// changes. Both can be mounted and written at once (tuff volume mount --branch NAME). Only a volume in a directory can be
/// forked.
///
/// The path may be the mount point of a branch. What programs wrote before the command began is in the fork, also what the
/// kernel has not written yet; nothing is that began after it returned. Only root and the user who mounted may do this.
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
    if let Some(dir) = mount_point(&args.volume.path) {
        if args.volume.branch.is_some() {
            return Err(Failure::Usage(
                "a mount point has one branch: leave out --branch".to_owned(),
            ));
        }
        let control = Control::Fork {
            name: args.name.clone(),
            snapshot: args.snapshot.clone(),
        };
        request(&dir, &control)?;
        return Ok(ExitCode::SUCCESS);
    }
    let dir = directory(&args.volume.path)?;
    let (from, snapshot) = (args.volume.branch.as_deref(), args.snapshot.as_deref());
    tuff_iplfs::fork(&dir, from, &args.name, snapshot, now()).at(dir.display())?;
    Ok(ExitCode::SUCCESS)
}
