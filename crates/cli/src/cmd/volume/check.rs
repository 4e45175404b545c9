//! `tuff volume check`: every node, entry, address and count of a volume.

use super::{At, Result, bytes, device};
use crate::out::Out;
use crate::text::escaped_line;
use crate::units::size;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::ExitCode;
use tuff_iplfs::{CheckOptions, Report};

/// Check a volume: every node, every entry, every address, every count, and every block its host holds.
///
/// One line per finding. Exit code 0 if there is nothing to fix, 1 if something was found, above 1 if the volume
/// cannot be opened. Reads only, unless told to repair.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Directory, file or block device of the volume
    path: PathBuf,
    /// Read every data block, too, and compare its checksum
    #[arg(short, long)]
    data: bool,
    /// If the newest checkpoint is damaged, check the one before it
    #[arg(long)]
    fallback: bool,
    /// No summary; findings only
    #[arg(short, long)]
    quiet: bool,
    /// One JSON object
    #[arg(long, conflicts_with = "quiet")]
    json: bool,
}

/// Runs the verb.
pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let device = device(&args.path, true)?;
    let options = CheckOptions {
        data: args.data,
        fallback: args.fallback,
    };
    let report = tuff_iplfs::check(&device, options).at(args.path.display())?;
    let mut out = Out::new();
    if args.json {
        out.line(report_json(&report))?;
    } else {
        text(&report, args.quiet, &mut out)?;
    }
    out.finish()?;
    Ok(ExitCode::from(u8::from(!report.findings.is_empty())))
}

fn text(report: &Report, quiet: bool, out: &mut Out) -> Result<()> {
    for finding in &report.findings {
        out.line(escaped_line(&finding.to_string()))?;
    }
    if quiet {
        return Ok(());
    }
    out.line(format_args!(
        "checkpoint {}{}: {} inodes, {} reachable, {} in the discard log, {} leaked",
        report.version,
        if report.clean { "" } else { ", not unmounted" },
        report.inodes,
        size(bytes(report.reachable.len() as u64)),
        size(bytes(report.pending_blocks)),
        size(bytes(report.leaked_blocks())),
    ))?;
    match report.findings.len() {
        0 => out.line("clean")?,
        n => out.line(format_args!("{n} findings"))?,
    }
    Ok(())
}

fn report_json(report: &Report) -> Value {
    let findings: Vec<Value> = report
        .findings
        .iter()
        .map(|f| json!({"place": f.place, "what": f.what}))
        .collect();
    json!({
        "clean": report.findings.is_empty(), "findings": findings,
        "checkpoint": report.version, "unmounted": report.clean, "inodes": report.inodes,
        "reachable_bytes": bytes(report.reachable.len() as u64),
        "pending_bytes": bytes(report.pending_blocks), "leaked_bytes": bytes(report.leaked_blocks()),
    })
}
