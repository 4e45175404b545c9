//! `tuff store copy`: copies snapshots into another store.

use super::keys::KeyArgs;
use super::objects::Objects;
use super::place;
use super::work::WorkArgs;
use crate::cmd::build_image::watched;
use crate::out::Out;
use crate::units::{counted, size};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use tuff_erofs::{Error, Result};
use tuff_mkfs::Progress;

/// Copy snapshots of a backup store into another one
///
/// TO becomes a store with the same compression if it is absent or empty. What it lacks is copied as it is stored, and compared with
/// its digests on the way. Snapshots that it has are left out, so that a second run goes on.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Store to read: a directory, or s3://BUCKET/PREFIX
    #[arg(value_name = "FROM")]
    from: PathBuf,
    /// Store to write
    #[arg(value_name = "TO")]
    to: PathBuf,
    /// Number of a snapshot to copy, may be repeated (default: all)
    #[arg(short, long, value_name = "N")]
    snapshot: Vec<u32>,
    #[command(flatten)]
    keys: KeyArgs,
    /// Encrypt TO if it is made; see `tuff backup`
    #[arg(long)]
    encrypt: bool,
    #[command(flatten)]
    work: WorkArgs,
}

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    // Keys may be for one of two stores.
    let none = KeyArgs::default();
    let keys = |path: &Path| match Objects::at(path)?.encrypted()? {
        Some(_) => Ok(&args.keys),
        None => Ok::<_, Error>(&none),
    };
    let from = place::open(&args.from, keys(&args.from)?, false)?;
    if !place::is_at(&args.to)? {
        let keys = if args.encrypt { &args.keys } else { &none };
        place::create(&args.to, from.compression(), keys, args.encrypt)?;
    }
    let mut to = place::open(&args.to, keys(&args.to)?, true)?;
    args.keys.compare(&args.to, args.encrypt)?;
    let progress = Arc::new(Progress::default());
    let threads = args.work.threads();
    let (copied, _) = watched(&progress, args.work.show(), |progress| {
        from.copy_to(&mut to, &args.snapshot, threads, progress)
    })?;
    let mut out = Out::new();
    if args.work.json {
        let snapshots = copied.snapshots.iter();
        let snapshots = snapshots.map(|(from, to)| json!({"from": from, "to": to}));
        out.json(&json!({
            "snapshots": snapshots.collect::<Vec<Value>>(),
            "had": copied.had,
            "stored_bytes": copied.stored_bytes,
        }))?;
    } else if !args.work.quiet {
        for (from, to) in copied.snapshots.iter().filter(|(from, to)| from != to) {
            out.line(format_args!("snapshot     {from} is {to} there"))?;
        }
        out.line(format_args!(
            "copied       {}, {} were there",
            counted(copied.snapshots.len(), "snapshot"),
            copied.had
        ))?;
        out.line(format_args!("stored       {}", size(copied.stored_bytes)))?;
    }
    out.finish()?;
    Ok(ExitCode::SUCCESS)
}
