//! `tuff store repair`: repairs a store with its parity.

use super::place::StoreArgs;
use super::work::WorkArgs;
use crate::cmd::build_image::watched;
use crate::out::Out;
use crate::text::escaped_line;
use crate::units::counted;
use serde_json::json;
use std::process::ExitCode;
use std::sync::Arc;
use tuff_erofs::Result;
use tuff_mkfs::Progress;

/// Repair a backup store with its parity
///
/// Reads everything. Each segment has about 2 % of parity: damaged and unreadable blocks are corrected in place, and bytes that were
/// removed or inserted are noticed and undone. What is lost is removed from the directories, so that the next run of `tuff backup`
/// stores it again if a source still has it. What cannot be read without being damaged stays, because it may be read at another
/// attempt. Parity that is missing is written. The exit code is 1 if something is lost or cannot be read.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    place: StoreArgs,
    #[command(flatten)]
    work: WorkArgs,
}

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let mut store = args.place.open(true)?;
    let threads = args.work.threads();
    let progress = Arc::new(Progress::default());
    let show = args.work.show();
    let (repaired, _) = watched(&progress, show, |progress| store.repair(threads, progress))?;
    let mut out = Out::new();
    if args.work.json {
        let lost = repaired.lost.iter().map(ToString::to_string);
        out.json(&json!({
            "blocks": repaired.blocks,
            "shifted_blocks": repaired.shifted_blocks,
            "renewed_segments": repaired.renewed_segments,
            "lost": lost.collect::<Vec<String>>(),
            "findings": repaired.findings,
        }))?;
    } else {
        for finding in &repaired.findings {
            out.line(escaped_line(finding))?;
        }
        if !args.work.quiet {
            out.line(format_args!(
                "{} corrected, {} lost",
                counted(repaired.blocks + repaired.shifted_blocks, "block"),
                counted(repaired.lost.len(), "range")
            ))?;
        }
    }
    out.finish()?;
    Ok(ExitCode::from(u8::from(repaired.has_losses)))
}
