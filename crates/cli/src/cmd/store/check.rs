//! `tuff store check`: checks a store.

use super::place::StoreArgs;
use crate::cmd::build_image::watched;
use crate::out::Out;
use crate::progress::Show;
use crate::text::escaped_line;
use crate::units::{counted, size};
use serde_json::json;
use std::process::ExitCode;
use std::sync::Arc;
use tuff_backup::Depth;
use tuff_erofs::Result;
use tuff_mkfs::Progress;

/// Check a backup store
///
/// Reads the trees of all snapshots and looks for the parts that they name. With --read-data 100% all content, trees and parity are
/// read and compared with their digests. --read-data 5% reads that much, from where the last such check ended: 20 of them read
/// everything. The exit code is 1 if something is damaged or missing.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    place: StoreArgs,
    /// Read this part of the content, such as 5% or 100%
    #[arg(long, value_name = "PART", value_parser = part)]
    read_data: Option<f64>,
    /// Print neither progress nor summary
    #[arg(short, long)]
    quiet: bool,
    /// Print one JSON object
    #[arg(long, conflicts_with = "quiet")]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let store = args.place.open(false)?;
    let depth = match args.read_data {
        None => Depth::Trees,
        Some(1.0) => Depth::Data,
        Some(part) => Depth::Part(part),
    };
    let progress = Arc::new(Progress::default());
    let show = Show::unless(args.quiet || args.json);
    let (checked, _) = watched(&progress, show, |progress| {
        store.check(depth, tuff_mkfs::available_threads(), progress)
    })?;
    let mut out = Out::new();
    if args.json {
        out.json(&json!({
            "snapshots": checked.snapshots,
            "parts": checked.ranges,
            "read_bytes": checked.read_bytes,
            "longest_run": checked.longest_run,
            "findings": checked.findings,
        }))?;
    } else {
        for finding in &checked.findings {
            out.line(escaped_line(finding))?;
        }
        if let Some(run) = checked.longest_run.filter(|_| !args.quiet) {
            let run = size(run);
            out.line(format_args!("parity corrects runs of {run} and more"))?;
        }
        if !args.quiet {
            out.line(format_args!(
                "{}, {}, {} read, {}",
                counted(checked.snapshots, "snapshot"),
                counted(checked.ranges, "part"),
                size(checked.read_bytes),
                counted(checked.findings.len(), "finding")
            ))?;
        }
    }
    out.finish()?;
    Ok(ExitCode::from(u8::from(!checked.findings.is_empty())))
}

/// Reads a part: `5%`.
fn part(text: &str) -> std::result::Result<f64, String> {
    let number = text
        .strip_suffix('%')
        .and_then(|number| number.parse::<f64>().ok());
    let number = number.filter(|number| *number > 0.0 && *number <= 100.0);
    let number = number.ok_or("expected a percentage above 0, such as 5%")?;
    Ok(number / 100.0)
}
