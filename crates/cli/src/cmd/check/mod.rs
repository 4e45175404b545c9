//! `tuff check`: verifies every structure and cluster of an image.

mod disk;
mod finding;
mod tree;

use self::finding::Finding;
use crate::image::{ImageArgs, container};
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
/// An image is compared with the hash tree that follows it, which finds all damage. Only a root hash (--verity) finds changes on
/// purpose. For a disk of tuff disk the check includes the partition table, the hash tree, and with --trust the signature.
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
    let verification = Verification::check(args, &meter)?;
    if !args.json {
        for finding in verification.findings() {
            out.line(finding.line())?;
        }
    }
    let place = args.image.watched(&meter);
    let opened = match verification.disk {
        // All of it was verified, or that failed.
        Some(_) => place.open_unchecked(),
        None => place.open_unverified(),
    };
    let image = match opened {
        Ok(image) => image,
        Err(e) => {
            out.finish()?;
            return Err(e);
        }
    };
    if !args.metadata {
        image.with_devices()?;
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
        out.json(&report_json(&report, &verification, seconds))?;
    } else {
        text(&report, &verification, args.quiet, seconds, &mut out)?;
    }
    out.finish()?;
    if verification.disk.is_some() {
        // Findings are printed first. A disk that is not trusted is an error as for the other verbs.
        container(&args.image.image, &args.image.open.options()?)?;
    }
    let clean = if args.errors_only {
        report.count(Severity::Error) == 0 && report.dropped == 0
    } else {
        report.is_clean()
    };
    Ok(ExitCode::from(u8::from(
        !(clean && verification.is_clean()),
    )))
}

/// Result for what the image is verified by.
struct Verification {
    /// Disk that contains the image. `None` for an image in a file of its own.
    disk: Option<disk::Report>,
    /// Hash tree that follows the image, if no root hash was given.
    tree: Option<tree::Report>,
}

impl Verification {
    fn check(args: &Args, meter: &Meter) -> Result<Self> {
        let threads = args.threads.map_or_else(available_threads, usize::from);
        let scan = (!args.metadata).then_some((threads, &**meter.counter()));
        if args.image.image.url().is_none() && args.image.open.offset == 0 {
            let plain = args.image.plain()?;
            if let Some(found) = plain.disk() {
                let disk = Some(disk::check(found, &args.image, scan)?);
                return Ok(Self { disk, tree: None });
            }
        }
        let (disk, tree) = (None, tree::check(&args.image, scan)?);
        Ok(Self { disk, tree })
    }

    fn findings(&self) -> impl Iterator<Item = &Finding> {
        let of_disk = self.disk.iter().flat_map(|disk| &disk.findings);
        of_disk.chain(self.tree.iter().flat_map(|tree| &tree.findings))
    }

    fn is_clean(&self) -> bool {
        self.findings().next().is_none()
    }
}

fn text(
    report: &Report,
    verification: &Verification,
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
    if let Some(disk) = &verification.disk {
        out.line(disk.text())?;
    }
    if let Some(tree) = &verification.tree {
        out.line(tree.text())?;
    }
    let (errors, warnings, notes) = counts(report, verification);
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

fn counts(report: &Report, verification: &Verification) -> (usize, usize, usize) {
    (
        report.count(Severity::Error) + verification.findings().count(),
        report.count(Severity::Warning),
        report.count(Severity::Note),
    )
}

fn report_json(report: &Report, verification: &Verification, seconds: f64) -> Value {
    let of_image = report
        .findings
        .iter()
        .map(|f| {
            json!({"severity": f.severity.to_string(), "rule": f.rule.name(), "place": f.place, "message": f.what})
        });
    let findings: Vec<Value> = verification
        .findings()
        .map(Finding::json)
        .chain(of_image)
        .collect();
    let t = &report.totals;
    let (errors, warnings, notes) = counts(report, verification);
    json!({
        "clean": report.is_clean() && verification.is_clean(),
        "disk": verification.disk.as_ref().map(disk::Report::json),
        "verity": verification.tree.as_ref().map(tree::Report::json),
        "errors": errors, "warnings": warnings, "notes": notes, "omitted": report.dropped,
        "findings": findings,
        "inodes": t.inodes, "directories": t.directories, "file_bytes": t.file_bytes,
        "clusters": t.clusters, "encoded_bytes": t.encoded_bytes, "decoded_bytes": t.decoded_bytes,
        "raw_bytes": t.raw_bytes,
        "lz4_clusters": t.lz4_clusters, "lz4_in_place": t.lz4_in_place,
        "seconds": seconds,
    })
}
