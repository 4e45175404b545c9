//! `tuff volume receive`: applies streams to a new or existing copy.

use super::create::{is_block, unmake, zone_blocks};
use super::failure::{At, Failure, Result};
use super::open::{branch_device, bytes, require_path};
use super::watched::WatchedStream;
use crate::overwrite::check_blank;
use crate::progress::{Meter, Show};
use crate::units::{parse_size, size};
use std::fs::File;
use std::io::{self, BufReader, IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use tuff_iplfs::backend::{FileDevice, MappedDevice, ZoneDir};
use tuff_iplfs::{BlockDevice, Error, Stream};
use tuff_store::{open_text, retry};

/// Apply a stream written by tuff volume send
///
/// A full stream creates a volume. An incremental stream advances a copy from the snapshot that it is based on to the next
/// one. A stream takes effect only when it is complete and valid; otherwise the volume is unchanged. The input may contain
/// several streams. A copy can be mounted, but writing to it makes it stop accepting streams.
///
/// Each branch of a copy accepts streams of its own. The changes of a branch since the snapshot from which it was forked go
/// to a new fork of the same snapshot (tuff volume fork --snapshot).
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Directory to create, or a file with --file; or the copy to advance
    path: PathBuf,
    /// Branch of the copy to advance [default: main]
    #[arg(long, value_name = "NAME")]
    branch: Option<String>,
    /// File to read; - is standard input
    #[arg(short, long, value_name = "FILE", default_value = "-")]
    input: PathBuf,
    /// Keep the snapshot that the stream is based on
    #[arg(long)]
    keep: bool,
    /// Create one sparse file instead of a directory
    #[arg(long)]
    file: bool,
    /// Size of a zone file of a new volume, a power of two
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "1G")]
    zone: u64,
    /// Overwrite a file or block device whatever it contains
    #[arg(long)]
    force: bool,
    /// Print what was received
    #[arg(short, long)]
    verbose: bool,
}

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let meter = Meter::start("receive", Show::Auto);
    let source: Box<dyn Read> = if args.input == Path::new("-") {
        if io::stdin().is_terminal() {
            let what = "standard input is a terminal: redirect it, or use -i";
            return Err(Failure::Usage(what.to_owned()));
        }
        Box::new(BufReader::with_capacity(1 << 20, io::stdin().lock()))
    } else {
        let file = open_text(&args.input).at(args.input.display())?;
        // A pipe has no length.
        let len = file.metadata().map_or(0, |meta| meta.len());
        meter.counter().add_total(len);
        Box::new(BufReader::with_capacity(1 << 20, file))
    };
    let mut source = WatchedStream::new(source, &meter);
    let place = args.path.display();
    let mut opened: Option<Arc<dyn BlockDevice>> = None;
    let mut streams = 0;
    while let Some(stream) = Stream::open(&mut source).at(&place)? {
        streams += 1;
        let mut made = false;
        let dev = match &opened {
            Some(dev) => dev.clone(),
            None => {
                let whole = stream.base().is_none();
                if whole && args.branch.is_some() {
                    let what = "a full stream creates a volume: leave out --branch";
                    return Err(Failure::Usage(what.to_owned()));
                }
                let meta = retry(|| args.path.metadata());
                made = whole && meta.is_err();
                let dev = if made || whole && is_block(&args.path) {
                    make(args, &stream)?
                } else if whole && meta.is_ok_and(|m| m.is_file()) {
                    take_over(args, &stream)?
                } else {
                    branch_device(&args.path, args.branch.as_deref(), false)?
                };
                opened = Some(dev.clone());
                dev
            }
        };
        let received = stream.receive(dev, args.keep);
        if received.is_err() && made {
            unmake(&args.path, false);
        }
        let received = match received {
            Err(Error::Usage(what)) => return Err(Failure::Usage(format!("{place}: {what}"))),
            other => other.at(&place)?,
        };
        if args.verbose {
            meter.suspend(|| {
                eprintln!(
                    "tuff: {place}: received '{}': {} of blocks, {} dead",
                    received.snapshot,
                    size(bytes(received.blocks)),
                    size(bytes(received.dead_blocks))
                );
            });
        }
    }
    if streams == 0 {
        return Err(Failure::Usage("the input contains no stream".to_owned()));
    }
    Ok(ExitCode::SUCCESS)
}

/// Creates the backing device of a new volume.
fn make(args: &Args, stream: &Stream<'_>) -> Result<Arc<dyn BlockDevice>> {
    require_path(&args.path)?;
    let place = args.path.display();
    if !args.file && !is_block(&args.path) {
        let zone_blocks = zone_blocks(args.zone)?;
        return Ok(Arc::new(
            ZoneDir::create(&args.path, zone_blocks).at(&place)?,
        ));
    }
    if args.file {
        let device = FileDevice::create(&args.path).at(&place)?;
        if let Err(e) = reaches(args, stream, &device) {
            drop(device);
            let _ = std::fs::remove_file(&args.path);
            return Err(e);
        }
        return Ok(Arc::new(device));
    }
    if !args.force {
        check_blank(&args.path)?;
    }
    let medium = FileDevice::open(&args.path, false).at(&place)?;
    let blocks = medium.blocks().at(&place)?;
    let sb = stream.superblock();
    let device = MappedDevice::create(Arc::new(medium), blocks, sb.uuid, &sb.geometry);
    Ok(Arc::new(device.at(&place)?))
}

/// Uses an existing file for a new volume, if it is empty or `--force` is given.
fn take_over(args: &Args, stream: &Stream<'_>) -> Result<Arc<dyn BlockDevice>> {
    let place = args.path.display();
    let device = FileDevice::open(&args.path, false).at(&place)?;
    // Receiving reports an existing volume itself.
    if tuff_iplfs::read_superblock(&device).is_err() {
        let len = retry(|| args.path.metadata()).at(&place)?.len();
        if len > 0 && !args.force {
            let what =
                format!("{place}: is a file but not a volume; --force replaces it by a volume");
            return Err(Failure::Usage(what));
        }
        reaches(args, stream, &device)?;
        let file = File::options().write(true).open(&args.path);
        file.and_then(|file| file.set_len(0)).at(&place)?;
    }
    Ok(Arc::new(device))
}

/// Fails if the stream has addresses that the device does not reach.
fn reaches(args: &Args, stream: &Stream<'_>, device: &FileDevice) -> Result<()> {
    let place = args.path.display();
    let needed = stream.superblock().geometry.area_bits;
    let reach = device.area_bits_max().at(&place)?;
    if needed > reach {
        return Err(Failure::Usage(format!(
            "{place}: the stream has addresses of {needed} bits, but the device supports {reach}: use a directory"
        )));
    }
    Ok(())
}
