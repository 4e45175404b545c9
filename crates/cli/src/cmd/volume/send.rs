//! `tuff volume send`: a snapshot as a stream.

use super::{Failure, Result, bytes, mount};
use crate::existing::Format;
use crate::sink::Sink;
use crate::units::size;
use std::path::PathBuf;
use std::process::ExitCode;
use tuff_iplfs::Error;

/// Write a snapshot of a volume as a stream: whole, or what it has beyond an older one.
///
/// Addresses are written once, so what is new lies past the heads of the older snapshot: nothing is compared, and the stream
/// is as long as what is new. tuff volume receive applies it.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Directory, file or block device of the volume
    path: PathBuf,
    /// Snapshot to send [default: the newest]
    snapshot: Option<String>,
    /// Send what the snapshot has beyond this older one, which the receiver holds
    #[arg(long, value_name = "SNAPSHOT")]
    from: Option<String>,
    /// File to write; - is standard output
    #[arg(short, long, value_name = "FILE", default_value = "-")]
    output: PathBuf,
    /// Replace FILE even if it is something else, and write to a terminal
    #[arg(long)]
    force: bool,
    /// Say what was sent
    #[arg(short, long)]
    verbose: bool,
}

/// Runs the verb.
pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let place = args.path.display();
    let mut volume = mount(&args.path, true)?;
    let newest = volume.snapshots().last().map(|s| s.name.clone());
    let Some(snapshot) = args.snapshot.clone().or(newest) else {
        return Err(Failure::Usage(format!(
            "{place}: has no snapshot to send; tuff volume snapshot create makes one"
        )));
    };
    let mut sink = Sink::create(&args.output, &[&args.path], Format::Stream, args.force)?;
    let sent = volume.send(&snapshot, args.from.as_deref(), &mut sink);
    let sent = sent.map_err(|e| match e {
        Error::Io(e, what) if what == "writing the stream" => sink.failed(e).into(),
        Error::Usage(what) => Failure::Usage(format!("{place}: {what}")),
        e => Failure::Volume(place.to_string(), e),
    })?;
    sink.finish()?;
    if args.verbose {
        eprintln!(
            "tuff: {place}: sent '{snapshot}' in {}: {} of blocks, {} dead",
            size(sent.bytes),
            size(bytes(sent.blocks)),
            size(bytes(sent.dead_blocks))
        );
    }
    Ok(ExitCode::SUCCESS)
}
