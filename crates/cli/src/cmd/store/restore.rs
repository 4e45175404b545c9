//! `tuff store restore`: extracts a snapshot.

use super::snapshot::{SnapshotArgs, image, pin};
use crate::cmd::build_image::watched;
use crate::out::Out;
use crate::progress::{Meter, Show, on_signal};
use crate::select::{is_below, normal};
use crate::text::{escaped_line, escaped_path, unescaped};
use crate::units::{counted, size};
use serde_json::json;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use tuff_backup::Snapshot;
use tuff_erofs::extract::{self, Options};
use tuff_erofs::read::Image;
use tuff_erofs::{Error, Result};
use tuff_mkfs::Progress;

/// Restore files of a snapshot into a directory
///
/// The files get their absolute paths below DIR. Nothing outside of DIR is written, and no link is followed, whatever the store
/// contains. Existing files stay unless --overwrite is given, and nothing is deleted unless --delete is given. Existing directories
/// above the restored ones stay as they are. Files that could not be restored are listed, and the exit code is 1.
///
/// All content is compared with its digests before it is written. A file with damaged content ends the restore, unless --keep-going
/// is given: the damaged parts of such files are zeros then, but existing files stay in their place. Files that were restored before
/// stay.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    snapshot: SnapshotArgs,
    /// Directory, created if it does not exist
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Paths in the snapshot, each with everything below it, as they are or as Tuff prints them (default: all that was saved)
    #[arg(value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Replace existing files, and restore into existing directories
    #[arg(long)]
    overwrite: bool,
    /// Delete what the snapshot lacks in the restored directories, also what the backup excluded
    #[arg(long, requires = "overwrite")]
    delete: bool,
    /// Do not restore owners
    #[arg(long)]
    no_owner: bool,
    /// Restore although files are damaged or cannot be written, and list them
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
    if args.delete && snapshot.left_out > 0 && !args.keep_going {
        return Err(Error::usage(format_args!(
            "snapshot {} lacks {} that could not be read, which --delete would delete; --keep-going does so",
            snapshot.number,
            counted(snapshot.left_out, "file")
        )));
    }
    let show = || Show::unless(args.quiet || args.json);
    let built = image(&store, &snapshot);
    if let Err(Error::Corrupt(_)) = built {
        // It names the files of what is lost.
        let progress = Arc::new(Progress::default());
        let checked = watched(&progress, show(), |progress| {
            store.check_files(&snapshot, &[], progress)
        });
        for finding in checked.iter().flat_map(|(checked, _)| &checked.findings) {
            eprintln!("tuff: {}", escaped_line(finding));
        }
    }
    let (_temporary, image) = built?;
    let opened = image.open_comparing()?;
    let paths = selected(&snapshot, &opened, &args.paths)?;
    let meter = Meter::start("restore", show());
    let options = Options {
        paths,
        overwrite: args.overwrite,
        keep_above: true,
        delete: args.delete,
        // Another owner than that of the snapshot is a difference, whoever restores.
        owners: Some(!args.no_owner),
        keep_going: args.keep_going,
        stop: on_signal(),
        ..Options::default()
    };
    let report = extract::extract(&opened, &args.dir, &options, |_| ());
    drop(meter);
    let report = report?;
    for problem in &report.problems {
        eprintln!("tuff: {}: {}", escaped_path(&problem.path), problem.what);
    }
    if report.dropped > 0 {
        eprintln!("tuff: {} more problems are not shown", report.dropped);
    }
    let problems = report.problems.len() as u64 + report.dropped;
    let mut out = Out::new();
    if args.json {
        out.json(&json!({
            "snapshot": snapshot.number,
            "files": report.totals.files,
            "bytes": report.totals.bytes,
            "deleted": report.totals.deleted,
            "problems": problems,
        }))?;
    } else if !args.quiet {
        let deleted = match report.totals.deleted {
            0 => String::new(),
            n => format!(", {n} deleted"),
        };
        out.line(format_args!(
            "snapshot {}: {}, {}{deleted}",
            snapshot.number,
            counted(report.totals.files, "file"),
            size(report.totals.bytes)
        ))?;
    }
    out.finish()?;
    Ok(ExitCode::from(u8::from(problems > 0)))
}

/// Returns the paths to restore: those that are given, or the saved directories. A directory above saved ones stands for them.
fn selected(snapshot: &Snapshot, image: &Image, given: &[PathBuf]) -> Result<Vec<Vec<u8>>> {
    let mut roots = snapshot.roots();
    roots.retain(|root| image.resolve(root).is_ok());
    if given.is_empty() {
        return Ok(roots);
    }
    let mut paths = Vec::new();
    for path in given {
        let path = find(image, path.as_os_str().as_bytes())?;
        let below = roots.iter().filter(|root| is_below(&path, root));
        let mut below = below.peekable();
        match below.peek() {
            Some(_) => paths.extend(below.cloned()),
            None => paths.push(path),
        }
    }
    Ok(paths)
}

/// Finds a path as Tuff prints it, or else as it is.
fn find(image: &Image, path: &[u8]) -> Result<Vec<u8>> {
    let printed = unescaped(path).map(|path| normal(&path));
    if let Some(printed) = printed.filter(|path| image.resolve(path).is_ok()) {
        return Ok(printed);
    }
    let path = normal(path);
    image.resolve(&path)?;
    Ok(path)
}
