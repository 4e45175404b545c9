//! `tuff volume check`: checks and repairs a volume.

use super::failure::{At, Result};
use super::open::{VolumeArgs, bytes, device};
use super::stat::allocated;
use super::watched;
use crate::out::Out;
use crate::progress::{Meter, Show};
use crate::text::{full_time, time};
use crate::units::{counted, size};
use serde_json::{Value, json};
use std::process::ExitCode;
use std::sync::Arc;
use tuff_iplfs::{BlockDevice, CheckOptions, Error, Report};

/// Check a volume, and repair it with --repair
///
/// Checks every node, directory entry, address and counter, and every block that the host stores. Prints one line per
/// finding. The exit code is 0 if there is nothing to fix, 1 if there are findings, and above 1 if the volume cannot be
/// opened. A superblock, checkpoint or header with only one valid copy is a finding; a writable mount and --repair restore
/// the other copy.
///
/// With --repair the lines are the repairs, and exit code 1 means that there were any. A second repair finds nothing: lost
/// data is marked in the volume, and reading it is an error. If a repair has to fall back to the previous checkpoint, it
/// prints the time of that checkpoint.
///
/// Each branch is checked and repaired alone, and a repair changes nothing of the others. Damage that only a fork still reads
/// is a finding of the fork. A volume with branches is not rebuilt.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    volume: VolumeArgs,
    /// Also read every data block and verify its checksum
    #[arg(short, long)]
    data: bool,
    /// If the newest checkpoint is damaged, check the previous one
    #[arg(long)]
    fallback: bool,
    /// Repair the volume: damage that cannot be repaired is removed and listed; with --data, lost blocks become read errors
    #[arg(long, conflicts_with = "fallback")]
    repair: bool,
    /// Rebuild the volume from its logs after the loss of both checkpoint packs
    #[arg(long, conflicts_with_all = ["fallback", "repair"])]
    rebuild: bool,
    /// Print only findings, no summary
    #[arg(short, long)]
    quiet: bool,
    /// Print one JSON object
    #[arg(long, conflicts_with = "quiet")]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    if args.repair || args.rebuild {
        return mend(args);
    }
    let meter = Meter::start("check", Show::unless(args.quiet || args.json));
    let device = open(args, true, &meter)?;
    let options = CheckOptions {
        data: args.data,
        fallback: args.fallback,
    };
    let report = tuff_iplfs::check(&device, options).at(args.volume.path.display())?;
    drop(meter);
    let mut out = Out::new();
    if args.json {
        out.json(&report_json(&report))?;
    } else {
        text(&report, args.quiet, &mut out)?;
    }
    out.finish()?;
    Ok(ExitCode::from(u8::from(!report.findings.is_empty())))
}

/// Opens the device of the volume, whose reads are progress.
fn open(args: &Args, read_only: bool, meter: &Meter) -> Result<Arc<dyn BlockDevice>> {
    let device = device(&args.volume, read_only)?;
    // Only a check of all data reads a known share.
    if args.data
        && meter.is_shown()
        && let Ok(sb) = tuff_iplfs::read_superblock(&*device)
        && let Ok(Some(blocks)) = allocated(&*device, sb.geometry.area_blocks())
    {
        meter.counter().add_total(bytes(blocks));
    }
    Ok(watched::device(device, meter))
}

fn mend(args: &Args) -> Result<ExitCode> {
    let place = args.volume.path.display();
    let meter = Meter::start("repair", Show::unless(args.quiet || args.json));
    let device = open(args, false, &meter)?;
    let repaired = if args.rebuild {
        let uuid = super::open::uuid().at("/dev/urandom")?;
        tuff_iplfs::rebuild(&device, uuid, super::open::now())
    } else {
        tuff_iplfs::repair(&device, args.data, super::open::now())
    };
    let repaired = repaired
        .map_err(|e| match e {
            // A repair starts from a checkpoint, a rebuild only needs the superblock.
            Error::Corrupt(what)
                if !args.rebuild
                    && device
                        .branch()
                        .is_none_or(|branch| branch.layout().is_none())
                    && tuff_iplfs::read_superblock(&*device).is_ok() =>
            {
                let advice = "--rebuild rebuilds the volume from its logs";
                Error::Corrupt(format!("{what}; {advice}"))
            }
            e => e,
        })
        .at(&place)?;
    drop(meter);
    let mut out = Out::new();
    if args.json {
        let done: Vec<Value> = repaired
            .done
            .iter()
            .map(|f| json!({"place": f.place, "message": f.what}))
            .collect();
        let mut report = report_json(&repaired.left);
        report["done"] = done.into();
        report["fallback"] = repaired.fallback.map_or(Value::Null, |w| {
            json!({"lost_checkpoint": w.lost, "used_checkpoint": w.used, "changed": full_time((w.changed.sec, w.changed.nsec))})
        });
        out.line(report)?;
    } else {
        for done in &repaired.done {
            out.line(done)?;
        }
        if let Some(w) = repaired.fallback {
            out.line(format_args!(
                "fell back to checkpoint {}, last changed {} UTC: changes in checkpoint {} are lost, if it was ever committed",
                w.used,
                time(w.changed.sec),
                w.lost
            ))?;
        }
        text(&repaired.left, args.quiet, &mut out)?;
    }
    out.finish()?;
    let sound = repaired.done.is_empty() && repaired.left.findings.is_empty();
    Ok(ExitCode::from(u8::from(!sound)))
}

fn text(report: &Report, quiet: bool, out: &mut Out) -> Result<()> {
    for finding in &report.findings {
        out.line(finding)?;
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
    if report.lost_blocks > 0 {
        let lost = size(bytes(report.lost_blocks));
        out.line(format_args!(
            "{lost} of files are lost since an earlier repair: reading them is an error"
        ))?;
    }
    if report.lost_in_snapshots > 0 {
        let lost = size(bytes(report.lost_in_snapshots));
        out.line(format_args!(
            "{lost} of snapshots are lost since an earlier repair: reading them is an error"
        ))?;
    }
    match report.findings.len() {
        0 => out.line("clean")?,
        n => out.line(counted(n, "finding"))?,
    }
    Ok(())
}

fn report_json(report: &Report) -> Value {
    let findings: Vec<Value> = report
        .findings
        .iter()
        .map(|f| json!({"place": f.place, "message": f.what}))
        .collect();
    json!({
        "clean": report.findings.is_empty(), "findings": findings,
        "checkpoint": report.version, "unmounted": report.clean, "inodes": report.inodes,
        "reachable_bytes": bytes(report.reachable.len() as u64),
        "lost_bytes": bytes(report.lost_blocks), "snapshots_lost_bytes": bytes(report.lost_in_snapshots),
        "pending_bytes": bytes(report.pending_blocks), "leaked_bytes": bytes(report.leaked_blocks()),
    })
}
