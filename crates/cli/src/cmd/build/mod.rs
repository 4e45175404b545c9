//! `tuff build`: sources to an image; `tuff patch`: to one that is there.
//!
//! `args` says what can be asked for, `options` turns that into what the library takes, `summary` says what came of it.

mod args;
mod options;
pub(crate) mod patch;
mod summary;

pub(crate) use args::{Args, parse_kernel};

use crate::progress::{Show, Watch};
use std::process::ExitCode;
use std::sync::Arc;
use tuff_image::Result;
use tuff_image::build::{self, Progress, Summary};
use tuff_store::Target;

/// Runs the verb.
pub(crate) fn run(args: Args) -> Result<ExitCode> {
    let (sources, target) = options::places(&args)?;
    let options = options::options(&args)?;
    // A summary must not land in an image that goes to standard output.
    let to_stdout = target == Target::Stdout;
    report(&args, to_stdout, |progress| {
        build::build(&sources, &options, &target, progress)
    })
}

/// Works, shows progress, and says what came of it: on standard error if `aside`.
fn report(
    args: &Args,
    aside: bool,
    work: impl FnOnce(&Progress) -> Result<Summary>,
) -> Result<ExitCode> {
    let show = if args.json {
        Show::Json
    } else if args.quiet {
        Show::Quiet
    } else {
        Show::Auto
    };
    let progress = Arc::new(Progress::default());
    let watch = Watch::start(&progress, show);
    let start = std::time::Instant::now();
    let result = work(&progress);
    drop(watch);
    let summary = result?;
    let seconds = start.elapsed().as_secs_f64();
    let stages = if args.stats {
        progress.stages()
    } else {
        Vec::new()
    };
    for warning in &summary.stats.warnings {
        eprintln!("tuff: warning: {warning}");
    }
    match show {
        Show::Json if aside => eprintln!("{}", summary::json(&summary, seconds, &stages)),
        Show::Json => println!("{}", summary::json(&summary, seconds, &stages)),
        Show::Auto if aside => eprint!("{}", summary::text(&summary, seconds, &stages)),
        Show::Auto => print!("{}", summary::text(&summary, seconds, &stages)),
        Show::Quiet => {}
    }
    Ok(ExitCode::SUCCESS)
}
