//! `tuff volume export`: converts a volume or snapshot to a tar stream.

use super::failure::{Failure, Result};
use super::open::{VolumeArgs, bytes, mount};
use super::snapshot;
use super::tar::{Failed, TarWriter};
use super::watched::WatchedStream;
use crate::overwrite::Format;
use crate::progress::{Meter, Show};
use crate::sink::Sink;
use crate::text::escaped;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Convert a volume or snapshot to a tar stream
///
/// The format is PAX, and the same files give the same bytes. Hard links, extended attributes, devices, holes (GNU.sparse
/// 1.0), nanosecond times and long names are preserved. A tar cannot store sockets: they are listed on standard error.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    volume: VolumeArgs,
    /// Tar to write; - is standard output
    #[arg(value_name = "TAR", default_value = "-")]
    tar: PathBuf,
    /// Export this snapshot instead of the current state
    #[arg(long, value_name = "NAME")]
    snapshot: Option<String>,
    /// Replace TAR whatever it contains, and write to a terminal
    #[arg(long)]
    force: bool,
}

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let mut volume = mount(&args.volume, true)?;
    if let Some(name) = &args.snapshot {
        volume = volume
            .open_snapshot(name)
            .map_err(|e| snapshot::to_failure(&args.volume.path, name, e))?;
    }
    let mut sink = Sink::create(&args.tar, &[&args.volume.path], Format::Tar, args.force)?;
    // The reader of a pipe may print to the same terminal.
    let meter = Meter::start("export", Show::unless(args.tar == Path::new("-")));
    if args.snapshot.is_none() {
        meter.counter().add_total(bytes(volume.space().live));
    }
    let mut writer = TarWriter::new(WatchedStream::new(&mut sink, &meter));
    let done = writer.volume(&mut volume).and_then(|()| writer.finish());
    let sockets = done.map_err(|e| match e {
        Failed::Volume(e) => Failure::Volume(args.volume.path.display().to_string(), e),
        Failed::Out(e) => sink.failed(e).into(),
    })?;
    sink.finish()?;
    drop(meter);
    for path in sockets {
        eprintln!(
            "tuff: warning: {}: sockets have no place in a tar",
            escaped(&path)
        );
    }
    Ok(ExitCode::SUCCESS)
}
