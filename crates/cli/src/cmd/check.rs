//! `tuff check`: verifies every structure and cluster of an image.

mod disk;

use crate::image::{ImageArgs, OpenArgs};
use crate::out::Out;
use crate::progress::{Meter, Show};
use crate::units::{counted, size};
use serde_json::{Value, json};
use std::process::ExitCode;
use tuff_erofs::check::{self, Options, Report, Severity};
use tuff_erofs::{Result, THREADS_MAX};
use tuff_mkfs::available_threads;

/// Check an image: every structure, and that all data decodes
///
/// Prints one line per finding: severity, rule, place and finding. The exit code is 0 if there is nothing to fix (notes do
/// not count), 1 if there are findings, and above 1 if the image cannot be opened.
///
/// For a disk of tuff disk the check includes the partition table, the hash tree, and with --trust the signature.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    image: ImageArgs,
    /// Check only metadata; read no file data
    #[arg(short, long)]
    metadata: bool,
    /// Exit with 1 only for errors, not for warnings
    #[arg(long)]
    errors_only: bool,
    /// Count the LZ4 clusters that can be decoded in place
    #[arg(long, conflicts_with = "metadata")]
    in_place: bool,
    /// Verify the digests stored by tuff build --fingerprints
    #[arg(long, conflicts_with = "metadata")]
    fingerprints: bool,
    /// Largest number of findings to print; the rest are counted
    #[arg(long, default_value_t = 10_000, value_name = "N")]
    findings: usize,
    /// Decoding threads (default: the number of CPUs that the process may use)
    #[arg(short = 'j', long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=THREADS_MAX.into()))]
    threads: Option<u16>,
    /// Print only findings: neither progress nor summary
    #[arg(short, long)]
    quiet: bool,
    /// Print one JSON object
    #[arg(long, conflicts_with = "quiet")]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let meter = Meter::start("check", Show::unless(args.quiet || args.json));
    let mut out = Out::new();
    let disk = check_disk(args, &meter)?;
    let mut place = args.image.watched(&meter);
    if let Some(report) = &disk {
        // All of it was verified, or that failed.
        place.open = OpenArgs {
            trust: None,
            verity: None,
            ..place.open
        };
        if !args.json {
            for finding in &report.findings {
                out.line(finding.line())?;
            }
        }
    }
    let image = match place.open_unverified() {
        Ok(image) => image,
        Err(e) => {
            out.finish()?;
            return Err(e);
        }
    };
    if !args.metadata {
        place.with_devices(&image)?;
    }
    if args.metadata {
        // The share of metadata is not known.
        meter.counter().forget_total();
    }
    let options = Options {
        data: !args.metadata,
        in_place: args.in_place,
        fingerprints: args.fingerprints,
        threads: args.threads.map_or(0, usize::from),
        findings: args.findings,
    };
    let start = std::time::Instant::now();
    let report = check::check(&image, &options, |_| ());
    drop(meter);
    let seconds = start.elapsed().as_secs_f64();
    if args.json {
        out.json(&report_json(&report, disk.as_ref(), seconds))?;
    } else {
        text(&report, disk.as_ref(), args.quiet, seconds, &mut out)?;
    }
    out.finish()?;
    if disk.is_some() {
        // Findings are printed first. A disk that is not trusted is an error as for the other verbs.
        args.image.open.trusting(&args.image.image)?;
    }
    let clean = if args.errors_only {
        report.count(Severity::Error) == 0 && report.dropped == 0
    } else {
        report.is_clean()
    };
    let is_sealed = disk.is_none_or(|disk| disk.findings.is_empty());
    Ok(ExitCode::from(u8::from(!(clean && is_sealed))))
}

/// Verifies the disk that contains the image. `None` for an image in a file of its own.
fn check_disk(args: &Args, meter: &Meter) -> Result<Option<disk::Report>> {
    let open = &args.image.open;
    let Some(found) = open.disk(&args.image.image)? else {
        return Ok(None);
    };
    let threads = args.threads.map_or_else(available_threads, usize::from);
    let scan = (!args.metadata).then_some((threads, &**meter.counter()));
    disk::check(&found, open, scan).map(Some)
}

fn text(
    report: &Report,
    disk: Option<&disk::Report>,
    quiet: bool,
    seconds: f64,
    out: &mut Out,
) -> Result<()> {
    for finding in &report.findings {
        out.line(finding)?;
    }
    if report.dropped > 0 {
        let more = counted(report.dropped, "finding");
        out.line(format_args!("not shown: {more}"))?;
    }
    if quiet {
        return Ok(());
    }
    let t = &report.totals;
    out.line(format_args!(
        "{} inodes, {} directories, {} clusters ({} to {}), {} uncompressed, in {seconds:.2} s",
        t.inodes,
        t.directories,
        t.clusters,
        size(t.encoded_bytes),
        size(t.decoded_bytes),
        size(t.raw_bytes)
    ))?;
    if t.lz4_in_place > 0 {
        let share = crate::units::percent(t.lz4_in_place, t.lz4_clusters);
        out.line(format_args!(
            "{share} of {} LZ4 clusters can be decoded in place",
            t.lz4_clusters
        ))?;
    }
    if let Some(disk) = disk {
        out.line(disk.text())?;
    }
    let (errors, warnings, notes) = counts(report, disk);
    if errors + warnings + notes == 0 && report.dropped == 0 {
        return out.line("clean");
    }
    out.line(format_args!(
        "{}, {}, {}",
        counted(errors, "error"),
        counted(warnings, "warning"),
        counted(notes, "note")
    ))
}

fn counts(report: &Report, disk: Option<&disk::Report>) -> (usize, usize, usize) {
    (
        report.count(Severity::Error) + disk.map_or(0, |disk| disk.findings.len()),
        report.count(Severity::Warning),
        report.count(Severity::Note),
    )
}

fn report_json(report: &Report, disk: Option<&disk::Report>, seconds: f64) -> Value {
    let of_disk = disk.into_iter().flat_map(|disk| &disk.findings);
    let of_image = report
        .findings
        .iter()
        .map(|f| {
            json!({"severity": f.severity.to_string(), "rule": f.rule.name(), "place": f.place, "message": f.what})
        });
    let findings: Vec<Value> = of_disk.map(disk::Finding::json).chain(of_image).collect();
    let t = &report.totals;
    let (errors, warnings, notes) = counts(report, disk);
    json!({
        "clean": report.is_clean() && disk.is_none_or(|disk| disk.findings.is_empty()),
        "disk": disk.map(disk::Report::json),
        "errors": errors, "warnings": warnings, "notes": notes, "omitted": report.dropped,
        "findings": findings,
        "inodes": t.inodes, "directories": t.directories, "file_bytes": t.file_bytes,
        "clusters": t.clusters, "encoded_bytes": t.encoded_bytes, "decoded_bytes": t.decoded_bytes,
        "raw_bytes": t.raw_bytes,
        "lz4_clusters": t.lz4_clusters, "lz4_in_place": t.lz4_in_place,
        "seconds": seconds,
    })
}
