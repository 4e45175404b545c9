//! `tuff store list`: lists snapshots.

use crate::out::Out;
use crate::text::time;
use crate::units::size;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::ExitCode;
use tuff_backup::Store;
use tuff_erofs::Result;

/// List the snapshots of a backup store, oldest first
///
/// Times are those at which runs ended, in UTC.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Directory of the store
    #[arg(value_name = "STORE")]
    store: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let store = Store::open(&args.store)?;
    let mut out = Out::new();
    let (mut list, mut is_whole) = (Vec::<Value>::new(), true);
    for snapshot in store.snapshots()? {
        let snapshot = match snapshot {
            Ok(snapshot) => snapshot,
            Err(e) => {
                eprintln!("tuff: {e}");
                is_whole = false;
                continue;
            }
        };
        if args.json {
            list.push(json!({
                "snapshot": snapshot.number,
                "series": snapshot.series,
                "time": snapshot.time,
                "parent": snapshot.parent,
                "sources": snapshot.sources,
                "entries": snapshot.entries,
                "files": snapshot.files,
                "bytes": snapshot.bytes,
                "left_out": snapshot.left_out,
            }));
        } else {
            out.line(format_args!(
                "{:>6}  {}  {:>9} files  {:>10}  {}",
                snapshot.number,
                time(snapshot.time),
                snapshot.files,
                size(snapshot.bytes),
                snapshot.series
            ))?;
        }
    }
    if args.json {
        out.json(&json!({"snapshots": list, "stored_bytes": store.stored_bytes()}))?;
    }
    out.finish()?;
    Ok(ExitCode::from(if is_whole { 0 } else { 3 }))
}
