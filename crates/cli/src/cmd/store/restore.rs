//! `tuff store restore`: extracts a snapshot.

use super::snapshot::{SnapshotArgs, image, pin};
use crate::cmd::build_image::watched;
use crate::out::Out;
use crate::progress::{Meter, Show, on_signal};
use crate::text::{escaped_line, escaped_path};
use crate::units::{counted, size};
use serde_json::json;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use tuff_erofs::extract::{self, Options};
use tuff_erofs::{Error, Result};
use tuff_mkfs::Progress;

/// Restore files of a snapshot into a directory
///
/// The files get their absolute paths below DIR. Nothing outside of DIR is written, whatever the store contains. Existing files
/// stay unless --overwrite is given, and nothing is deleted. What could not be restored is listed, and the exit code is 1.
///
/// The content is compared with its digests first. If some of it is damaged, the files are named and nothing is restored, unless
/// --keep-going is given.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    snapshot: SnapshotArgs,
    /// Directory, created if it does not exist
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Absolute paths, each with everything below it (default: the whole snapshot)
    #[arg(value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Replace existing files, and restore into existing directories
    #[arg(long)]
    overwrite: bool,
    /// Restore although the files that are named are damaged
    #[arg(short, long)]
    keep_going: bool,
    /// Print neither progress nor summary
    #[arg(short, long)]
    quiet: bool,
    /// Print the summary as one JSON object
    #[arg(long, conflicts_with = "quiet")]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let (store, snapshot) = args.snapshot.open()?;
    let _pin = pin(&store, &snapshot)?;
    let show = || Show::unless(args.quiet || args.json);
    let paths = args.paths.iter().map(|path| {
        let path = path.strip_prefix("/").unwrap_or(path);
        path.as_os_str().as_bytes().to_vec()
    });
    let paths: Vec<Vec<u8>> = paths.collect();
    let progress = Arc::new(Progress::default());
    let (checked, _) = watched(&progress, show(), |progress| {
        store.check_files(&snapshot, &paths, progress)
    })?;
    for finding in &checked.findings {
        eprintln!("tuff: {}", escaped_line(finding));
    }
    if !checked.findings.is_empty() && !args.keep_going {
        return Err(Error::corrupt(
            args.snapshot.store.display(),
            "the snapshot is damaged; --keep-going restores it all the same",
        ));
    }
    let (_temporary, image) = image(&store, &snapshot)?;
    let meter = Meter::start("restore", show());
    let options = Options {
        paths,
        overwrite: args.overwrite,
        stop: on_signal(),
        ..Options::default()
    };
    let report = extract::extract(&image.open()?, &args.dir, &options, |_| ());
    drop(meter);
    let report = report?;
    for problem in &report.problems {
        eprintln!("tuff: {}: {}", escaped_path(&problem.path), problem.what);
    }
    if report.dropped > 0 {
        eprintln!("tuff: {} more problems are not shown", report.dropped);
    }
    let damaged = checked.findings.len() as u64;
    let problems = report.problems.len() as u64 + report.dropped + damaged;
    let mut out = Out::new();
    if args.json {
        out.json(&json!({
            "snapshot": snapshot.number,
            "files": report.totals.files,
            "bytes": report.totals.bytes,
            "problems": problems,
        }))?;
    } else if !args.quiet {
        out.line(format_args!(
            "snapshot {}: {}, {}",
            snapshot.number,
            counted(report.totals.files, "file"),
            size(report.totals.bytes)
        ))?;
    }
    out.finish()?;
    Ok(ExitCode::from(u8::from(problems > 0)))
}
