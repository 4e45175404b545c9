//! `tuff store diff`: compares two snapshots.

use super::place::StoreArgs;
use crate::cmd::build_image::watched;
use crate::cmd::diff::Printer;
use crate::progress::Show;
use std::process::ExitCode;
use std::sync::Arc;
use tuff_backup::{Snapshot, Store};
use tuff_erofs::{Error, Result};
use tuff_mkfs::Progress;

/// Compare two snapshots of a backup store
///
/// Prints one line per path, as `tuff diff` does: "-" only in A, "+" only in B, "~" different, with the properties that differ and
/// both values. Contents are compared by their digests and not read. The exit code is 0 if the snapshots are equal and 1 if they
/// differ.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    place: StoreArgs,
    /// Number of the first snapshot (default: the one before B in its series)
    #[arg(value_name = "A")]
    a: Option<u32>,
    /// Number of the second snapshot (default: the newest one, of the series of A)
    #[arg(value_name = "B")]
    b: Option<u32>,
    /// Print nothing; only set the exit code
    #[arg(short, long)]
    quiet: bool,
    /// Print one JSON object per line, the totals last
    #[arg(long, conflicts_with = "quiet")]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let store = args.place.open(false)?;
    let (a, b) = snapshots(args, &store)?;
    let mut printer = Printer::new(args.json, args.quiet);
    let progress = Arc::new(Progress::default());
    let (totals, _) = watched(&progress, Show::Quiet, |progress| {
        store.diff(&a, &b, progress, &mut |path, change| {
            printer.change(path, change)
        })
    })?;
    printer.finish(&totals)
}

fn snapshots(args: &Args, store: &Store) -> Result<(Snapshot, Snapshot)> {
    if let (Some(a), Some(b)) = (args.a, args.b) {
        return Ok((store.snapshot(a)?, store.snapshot(b)?));
    }
    let a = args.a.map(|number| store.snapshot(number)).transpose()?;
    let all: Result<Vec<Snapshot>> = store.snapshots()?.into_iter().collect();
    let mut all = all?;
    let series = match (&a, all.last()) {
        (Some(a), _) => a.series.clone(),
        (None, Some(newest)) => newest.series.clone(),
        (None, None) => String::new(),
    };
    all.retain(|snapshot| snapshot.series == series);
    let none = || Error::usage(format_args!("{}: no snapshots", args.place.store.display()));
    let b = all.pop().ok_or_else(none)?;
    let a = match a {
        Some(a) => a,
        None => all.pop().ok_or_else(|| {
            Error::usage(format_args!(
                "snapshot {} is the only one of its series; name two",
                b.number
            ))
        })?,
    };
    Ok((a, b))
}
