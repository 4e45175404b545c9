//! `tuff store check`: checks a store.

use crate::cmd::build_image::watched;
use crate::out::Out;
use crate::progress::Show;
use crate::text::escaped_line;
use crate::units::{counted, size};
use serde_json::json;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use tuff_backup::{Depth, Store};
use tuff_erofs::Result;
use tuff_mkfs::Progress;

/// Check a backup store
///
/// Reads the trees of all snapshots and looks for the parts that they name. With --read-data the content of every part is read and
/// compared with its digest. The exit code is 1 if something is damaged or missing.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Directory of the store
    #[arg(value_name = "STORE")]
    store: PathBuf,
    /// Read the content of all snapshots
    #[arg(long)]
    read_data: bool,
    /// Print neither progress nor summary
    #[arg(short, long)]
    quiet: bool,
    /// Print one JSON object
    #[arg(long, conflicts_with = "quiet")]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let store = Store::open(&args.store)?;
    let depth = if args.read_data {
        Depth::Data
    } else {
        Depth::Trees
    };
    let progress = Arc::new(Progress::default());
    let show = Show::unless(args.quiet || args.json);
    let (checked, _) = watched(&progress, show, |progress| store.check(depth, progress))?;
    let mut out = Out::new();
    if args.json {
        out.json(&json!({
            "snapshots": checked.snapshots,
            "parts": checked.ranges,
            "read_bytes": checked.read_bytes,
            "findings": checked.findings,
        }))?;
    } else {
        for finding in &checked.findings {
            out.line(escaped_line(finding))?;
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
