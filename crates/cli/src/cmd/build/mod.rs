//! `tuff build`: sources to an image.
//!
//! `args` says what can be asked for, `options` turns that into what the library takes, `summary` says what came of it.

mod args;
mod options;
mod summary;

pub(crate) use args::{Args, parse_kernel};

use crate::progress::{Show, Watch};
use std::process::ExitCode;
use std::sync::Arc;
use tuff_image::Result;
use tuff_image::build::{self, Progress};
use tuff_store::Target;

/// Runs the verb.
pub(crate) fn run(args: Args) -> Result<ExitCode> {
    let (sources, target) = options::places(&args)?;
    let options = options::options(&args)?;
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
    let result = build::build(&sources, &options, &target, &progress);
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
    // A summary must not land in an image that goes to standard output.
    let to_stdout = target == Target::Stdout;
    match show {
        Show::Json if to_stdout => eprintln!("{}", summary::json(&summary, seconds, &stages)),
        Show::Json => println!("{}", summary::json(&summary, seconds, &stages)),
        Show::Auto if to_stdout => eprint!("{}", summary::text(&summary, seconds, &stages)),
        Show::Auto => print!("{}", summary::text(&summary, seconds, &stages)),
        Show::Quiet => {}
    }
    Ok(ExitCode::SUCCESS)
}
