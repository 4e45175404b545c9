//! `tuff volume trim`: returns unreferenced blocks to the host.

use super::failure::{At, Result};
use super::open::{VolumeArgs, bytes, mount};
use crate::out::Out;
use crate::units::size;
use serde_json::json;
use std::process::ExitCode;

/// Return unreferenced blocks to the host
///
/// Volumes discard dead blocks on their own. This verb compares the references of the volume with the blocks that its host
/// stores, and finds blocks that leaked because the discard log did not fit its area.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    volume: VolumeArgs,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let place = args.volume.path.display();
    let mut volume = mount(&args.volume, false)?;
    let before = volume.stats().discarded_blocks;
    let leaked = volume.trim().at(&place)?;
    let discarded = volume.stats().discarded_blocks - before;
    volume.unmount().at(&place)?;
    let mut out = Out::new();
    if args.json {
        out.json(&json!({"leaked_bytes": bytes(leaked), "discarded_bytes": bytes(discarded)}))?;
    } else {
        let text = format_args!(
            "{} returned to the host, {} of it leaked",
            size(bytes(discarded)),
            size(bytes(leaked))
        );
        out.line(text)?;
    }
    Ok(out.finish()?)
}
