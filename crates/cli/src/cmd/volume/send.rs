//! `tuff volume send`: writes a snapshot as a stream.

use super::failure::{Failure, Result};
use super::open::{VolumeArgs, bytes, mount};
use super::watched::WatchedStream;
use crate::overwrite::Format;
use crate::progress::{Meter, Show};
use crate::sink::Sink;
use crate::units::size;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tuff_iplfs::Error;

/// Write a snapshot as a stream, full or incremental
///
/// Each address is written only once, so new data lies past the log heads of the older snapshot: an incremental stream needs
/// no comparison and contains only the changes. tuff volume receive applies it.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    volume: VolumeArgs,
    /// Snapshot to send [default: the newest]
    snapshot: Option<String>,
    /// Send only the changes since this older snapshot, or that from which the branch was forked; the receiver has it
    #[arg(long, value_name = "SNAPSHOT")]
    from: Option<String>,
    /// File to write; - is standard output
    #[arg(short, long, value_name = "FILE", default_value = "-")]
    output: PathBuf,
    /// Replace FILE whatever it contains, and write to a terminal
    #[arg(long)]
    force: bool,
    /// Print what was sent
    #[arg(short, long)]
    verbose: bool,
}

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let place = args.volume.path.display();
    let mut volume = mount(&args.volume, true)?;
    let newest = volume.snapshots().last().map(|s| s.name.clone());
    // The reader of a pipe may print to the same terminal.
    let meter = Meter::start("send", Show::unless(args.output == Path::new("-")));
    let Some(snapshot) = args.snapshot.clone().or(newest) else {
        return Err(Failure::Usage(format!(
            "{place}: has no snapshot to send; tuff volume snapshot create makes one"
        )));
    };
    let mut sink = Sink::create(
        &args.output,
        &[&args.volume.path],
        Format::Stream,
        args.force,
    )?;
    let whole = volume.snapshots().iter().find(|s| s.name == snapshot);
    if let (Some(whole), None) = (whole, &args.from) {
        meter.counter().add_total(bytes(whole.live_blocks));
    }
    let mut stream = WatchedStream::new(&mut sink, &meter);
    let sent = volume.send(&snapshot, args.from.as_deref(), &mut stream);
    let sent = sent.map_err(|e| match e {
        Error::Io(e, what) if what == "writing the stream" => sink.failed(e).into(),
        Error::Usage(what) => Failure::Usage(format!("{place}: {what}")),
        e => Failure::Volume(place.to_string(), e),
    })?;
    sink.finish()?;
    drop(meter);
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
