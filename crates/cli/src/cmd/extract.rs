//! `tuff extract`: extracts an image into a directory.

use crate::image::ImageArgs;
use crate::out::Out;
use crate::progress::{Meter, Show, on_signal};
use crate::select::{Selected, select};
use crate::text::{escaped_path, put_bytes};
use crate::units::{counted, size};
use serde_json::{Map, Value, json};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::ExitCode;
use tuff_erofs::extract::{self, Options, Report};
use tuff_erofs::read::Image;
use tuff_erofs::{Error, Result, THREADS_MAX};

/// Extract an image into a directory
///
/// Nothing outside DIR is written, whatever the image contains. Owners and attributes that the host does not allow to be
/// restored are listed, and the exit code is 1. After an error or ^C each file is either complete or absent; directories may
/// lack their attributes. --update continues from there.
///
/// A new DIR has a temporary name (.tuff-extract-*) until it is complete. In an existing DIR, new directories and files of
/// at least 1 MiB have such names too. A temporary name remains only after SIGKILL. The next extraction to the same place
/// removes it, or continues from it with --update or --overwrite. A kill may also leave smaller files incomplete in
/// directories that existed before; --update writes them again.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    image: ImageArgs,
    /// Directory, created if it does not exist
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Paths or patterns, each with everything below it (default: the whole image)
    #[arg(value_name = "PATH|GLOB")]
    paths: Vec<OsString>,
    /// Omit paths that match, with everything below them
    #[arg(long, value_name = "GLOB")]
    exclude: Vec<String>,
    /// Remove this many leading directories from every path
    #[arg(long, default_value_t = 0, value_name = "N")]
    strip: usize,
    /// Replace existing files, and extract into existing directories
    #[arg(long)]
    overwrite: bool,
    /// Like --overwrite, but keep files whose size, time, mode, owner and attributes match; contents are not compared
    #[arg(long, conflicts_with = "no_times")]
    update: bool,
    /// Restore owners (default for root)
    #[arg(long, overrides_with = "no_owner")]
    owner: bool,
    /// Do not restore owners
    #[arg(long, overrides_with = "owner")]
    no_owner: bool,
    /// Restore extended attributes (default)
    #[arg(long, overrides_with = "no_xattrs")]
    xattrs: bool,
    /// Do not restore extended attributes
    #[arg(long, overrides_with = "xattrs")]
    no_xattrs: bool,
    /// Do not restore times
    #[arg(long)]
    no_times: bool,
    /// Continue after damage, and list the affected files
    #[arg(short, long)]
    keep_going: bool,
    /// Largest number of files and directories to create
    #[arg(long, value_name = "N")]
    max_files: Option<u64>,
    /// Largest number of bytes to write
    #[arg(long, value_name = "SIZE", value_parser = crate::units::parse_size)]
    max_bytes: Option<u64>,
    /// Worker threads (default: the number of CPUs that the process may use)
    #[arg(short = 'j', long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=THREADS_MAX.into()))]
    threads: Option<u16>,
    /// Print neither progress nor summary
    #[arg(short, long)]
    quiet: bool,
    /// Print the summary as one JSON object
    #[arg(long, conflicts_with = "quiet")]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    extract_image(args).map_err(|e| args.image.named(e))
}

fn extract_image(args: &Args) -> Result<ExitCode> {
    let meter = Meter::start("extract", Show::unless(args.quiet || args.json));
    let image = args.image.watched(&meter).open_compared()?;
    image.with_devices()?;
    let (paths, include) = selected(&image, &args.paths)?;
    let defaults = Options::default();
    let options = Options {
        paths,
        include,
        exclude: args.exclude.clone(),
        strip: args.strip,
        overwrite: args.overwrite || args.update,
        update: args.update,
        owners: match (args.owner, args.no_owner) {
            (true, _) => Some(true),
            (_, true) => Some(false),
            _ => None,
        },
        xattrs: !args.no_xattrs,
        times: !args.no_times,
        keep_going: args.keep_going,
        threads: args.threads.map_or(0, usize::from),
        files: args.max_files.unwrap_or(defaults.files),
        bytes: args.max_bytes.unwrap_or(defaults.bytes),
        stop: on_signal(),
        ..defaults
    };
    if !(args.paths.is_empty() && args.exclude.is_empty()) {
        // The share of the image is not known.
        meter.counter().forget_total();
    }
    let start = std::time::Instant::now();
    let report = extract::extract(&image, &args.dir, &options, |_| ());
    drop(meter);
    let report = report.map_err(|e| match e {
        // The whole extraction was stopped, not a single file.
        Error::Io(_, ref io) if io.kind() == std::io::ErrorKind::Interrupted => {
            e.within(args.dir.display())
        }
        e => e,
    })?;
    let seconds = start.elapsed().as_secs_f64();
    let mut out = Out::new();
    if args.json {
        out.json(&summary_json(&report, seconds))?;
    } else {
        for problem in &report.problems {
            eprintln!("tuff: {}: {}", escaped_path(&problem.path), problem.what);
        }
        if report.dropped > 0 {
            eprintln!("tuff: {} more problems are not shown", report.dropped);
        }
        if !args.quiet {
            summary_text(&report, seconds, &mut out)?;
        }
    }
    out.finish()?;
    let whole = report.problems.is_empty() && report.dropped == 0;
    Ok(ExitCode::from(u8::from(!whole)))
}

/// Resolves the arguments to paths or patterns.
fn selected(image: &Image, arguments: &[OsString]) -> Result<(Vec<Vec<u8>>, Vec<String>)> {
    let (mut paths, mut globs) = (Vec::new(), Vec::new());
    // Every argument as a pattern, with names escaped. `None` if a name is not UTF-8.
    let mut all_globs = Some(Vec::new());
    for argument in arguments {
        match select(image, argument)? {
            Selected::Path(entry) => {
                match std::str::from_utf8(&entry.path) {
                    Ok(path) => {
                        if let Some(all) = &mut all_globs {
                            all.push(format!("/{}", globset::escape(path)));
                        }
                    }
                    Err(_) => all_globs = None,
                }
                paths.push(entry.path);
            }
            // Patterns are not expanded to paths: they may match every file.
            Selected::Pattern(_) => {
                let glob = String::from_utf8_lossy(argument.as_bytes()).into_owned();
                if let Some(all) = &mut all_globs {
                    all.push(glob.clone());
                }
                globs.push(glob);
            }
        }
    }
    match all_globs {
        _ if globs.is_empty() => Ok((paths, Vec::new())),
        _ if paths.is_empty() => Ok((Vec::new(), globs)),
        // The root stands for everything.
        _ if paths.iter().any(Vec::is_empty) => Ok((Vec::new(), Vec::new())),
        Some(all) => Ok((Vec::new(), all)),
        None => Err(Error::usage(
            "patterns do not go together with a path that is not UTF-8",
        )),
    }
}

fn summary_text(report: &Report, seconds: f64, out: &mut Out) -> Result<()> {
    let t = &report.totals;
    out.line(format_args!(
        "{} files, {} directories, {} symlinks, {} others, {} hard links, {} written in {seconds:.2} s",
        t.files,
        t.directories,
        t.symlinks,
        t.specials,
        t.links,
        size(t.bytes)
    ))?;
    if t.kept > 0 {
        out.line(format_args!("{} existing files kept", t.kept))?;
    }
    let problems = report.problems.len() as u64 + report.dropped;
    if problems > 0 {
        out.line(counted(problems, "problem"))?;
    }
    Ok(())
}

fn summary_json(report: &Report, seconds: f64) -> Value {
    let problems: Vec<Value> = report
        .problems
        .iter()
        .map(|p| {
            let mut one = Map::new();
            put_bytes(&mut one, "path", &p.path);
            one.insert("message".into(), p.what.clone().into());
            Value::Object(one)
        })
        .collect();
    let t = &report.totals;
    json!({
        "files": t.files, "files_kept": t.kept, "directories": t.directories, "symlinks": t.symlinks, "specials": t.specials,
        "hard_links": t.links, "bytes": t.bytes, "clusters": t.clusters,
        "problems": problems, "omitted": report.dropped, "seconds": seconds,
    })
}
