//! `tuff store prune`: frees what no snapshot names.

use super::place::StoreArgs;
use super::work::WorkArgs;
use crate::cmd::build_image::watched;
use crate::out::Out;
use crate::text::time;
use crate::units::size;
use serde_json::{Value, json};
use std::process::ExitCode;
use std::sync::Arc;
use tuff_erofs::Result;
use tuff_mkfs::Progress;

/// Free what no snapshot of a backup store names
///
/// Frees parts of packs as holes, so that nothing that is kept moves, and works on a full disk, too. A segment of which less than
/// 5 % would be freed stays as it is. Snapshots that are mounted or being restored keep what they name, although they are
/// forgotten: `tuff store list` shows such pins, and `tuff store unpin` removes one.
///
/// In a bucket, or while a snapshot of an encrypted store is in use, a run marks what nothing names, and a run seven days later
/// removes what is still not named: other hosts may write meanwhile.
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
    let (pruned, _) = watched(&progress, show, |progress| store.prune(threads, progress))?;
    for warning in &pruned.warnings {
        eprintln!("tuff: warning: {warning}");
    }
    let mut out = Out::new();
    if args.work.json {
        let pins = pruned
            .pins
            .iter()
            .map(|pin| json!({"pin": pin.name, "host": pin.host, "time": pin.time}));
        out.json(&json!({
            "freed_bytes": pruned.freed_bytes,
            "moved_bytes": pruned.moved_bytes,
            "removed_segments": pruned.removed_segments,
            "renewed_segments": pruned.renewed_segments,
            "marked_bytes": pruned.marked_bytes,
            "wait_seconds": pruned.wait.map(|wait| wait.as_secs()),
            "pins": pins.collect::<Vec<Value>>(),
            "warnings": pruned.warnings,
        }))?;
    } else if !args.work.quiet {
        for pin in &pruned.pins {
            let since = time(pin.time);
            out.line(format_args!(
                "pinned       {}, by {} since {since}",
                pin.name, pin.host
            ))?;
        }
        out.line(format_args!("freed        {}", size(pruned.freed_bytes)))?;
        if pruned.moved_bytes > 0 {
            out.line(format_args!("moved        {}", size(pruned.moved_bytes)))?;
        }
        if let Some(wait) = pruned.wait {
            out.line(format_args!(
                "marked       {}, which a run in {} hours frees",
                size(pruned.marked_bytes),
                wait.as_secs().div_ceil(3600)
            ))?;
        }
        let (removed, renewed) = (pruned.removed_segments, pruned.renewed_segments);
        out.line(format_args!(
            "segments     {removed} removed, {renewed} renewed"
        ))?;
    }
    out.finish()?;
    Ok(ExitCode::from(u8::from(!pruned.warnings.is_empty())))
}
