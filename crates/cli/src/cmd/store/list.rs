//! `tuff store list`: lists snapshots.

use super::place::StoreArgs;
use crate::out::Out;
use crate::text::time;
use crate::units::size;
use serde_json::{Value, json};
use std::process::ExitCode;
use tuff_erofs::Result;

/// List the snapshots of a backup store, oldest first
///
/// Times are those at which runs ended, in UTC. Snapshots that rules of `tuff store forget` do not count are marked, and pins of
/// snapshots in use follow.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    place: StoreArgs,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let store = args.place.open(false)?;
    let mut out = Out::new();
    let (mut list, mut is_whole) = (Vec::<Value>::new(), true);
    let mut snapshots = Vec::new();
    for snapshot in store.snapshots()? {
        match snapshot {
            Ok(snapshot) => snapshots.push(snapshot),
            Err(e) => {
                eprintln!("tuff: {e}");
                is_whole = false;
            }
        }
    }
    let doubts = store.doubts(&snapshots)?;
    for snapshot in &snapshots {
        let doubt = doubts.get(&snapshot.number);
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
                "doubt": doubt,
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
            if let Some(doubt) = doubt {
                out.line(format_args!("{:>6}  in doubt: {doubt}", ""))?;
            }
        }
    }
    let pins = store.pins()?;
    if args.json {
        let pins = pins
            .iter()
            .map(|pin| json!({"pin": pin.name, "host": pin.host, "time": pin.time}));
        out.json(&json!({
            "snapshots": list,
            "pins": pins.collect::<Vec<Value>>(),
            "stored_bytes": store.taken_bytes(),
        }))?;
    } else {
        for pin in pins {
            let since = time(pin.time);
            out.line(format_args!(
                "pin {}, by {} since {since}",
                pin.name, pin.host
            ))?;
        }
    }
    out.finish()?;
    Ok(ExitCode::from(if is_whole { 0 } else { 3 }))
}
