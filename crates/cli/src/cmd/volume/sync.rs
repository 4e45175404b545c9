//! `tuff volume sync`: makes a mounted volume durable, with what the kernel has not written yet.

use super::failure::Result;
use super::live;
use crate::cmd::umount::mounted;
use std::path::PathBuf;
use std::process::ExitCode;
use tuff_mount::volume::Control;

/// Make everything in a mounted volume durable
///
/// Returns when all that programs have written before is on the device, also through mappings and without fsync. sync and
/// syncfs do so only for volumes on block devices that root has mounted, from Linux 6.18 on.
///
/// Only root and the user who mounted the volume may do this. Needs Linux 6.16.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Mount point of the volume
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let dir = mounted(&args.dir)?;
    live::request(&dir, &Control::Sync)?;
    Ok(ExitCode::SUCCESS)
}
