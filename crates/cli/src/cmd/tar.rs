//! `tuff tar`: converts an image to a tar stream.

use crate::image::ImageArgs;
use crate::overwrite::Format;
use crate::progress::{Meter, Show};
use crate::select::select_trees;
use crate::sink::Sink;
use crate::text::escaped;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tuff_erofs::read::Image;
use tuff_erofs::tar::{Options, Stats, TarWriter};
use tuff_erofs::walk::{Entry, Walk};
use tuff_erofs::{Error, Result};

/// Convert an image to a tar stream
///
/// The format is PAX, and the same image gives the same bytes. Hard links, extended attributes and ACLs (SCHILY.xattr,
/// SCHILY.acl), devices, holes (GNU.sparse 1.0), nanosecond times, long names and large numbers are preserved. A tar cannot
/// store sockets: they are listed on standard error.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    image: ImageArgs,
    /// Tar to write; - is standard output
    #[arg(value_name = "TAR", default_value = "-")]
    tar: PathBuf,
    /// Paths or patterns, each with everything below it (default: the whole image)
    #[arg(value_name = "PATH|GLOB")]
    paths: Vec<OsString>,
    /// Replace TAR whatever it contains, and write to a terminal
    #[arg(long)]
    force: bool,
    /// Write holes as zeros
    #[arg(long)]
    no_sparse: bool,
    /// Omit extended attributes and ACLs
    #[arg(long)]
    no_xattrs: bool,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    convert(args).map_err(|e| args.image.named(e))
}

fn convert(args: &Args) -> Result<ExitCode> {
    // The reader of a pipe may print to the same terminal.
    let is_pipe = args.tar == Path::new("-");
    let meter = Meter::start("tar", Show::unless(is_pipe));
    let image = args.image.watched(&meter).open_compared()?;
    image.with_devices()?;
    if !args.paths.is_empty() {
        // The share of the image is not known.
        meter.counter().forget_total();
    }
    let trees = select_trees(&image, &args.paths)?;
    let options = Options {
        sparse: !args.no_sparse,
        xattrs: !args.no_xattrs,
    };
    let mut sink = Sink::create(&args.tar, &args.image.files(), Format::Tar, args.force)?;
    let stats = write(&image, trees, options, &mut sink).map_err(|e| match e {
        // The output failed, not a member.
        Error::Io(..) if e.place() == "tar" => sink.stop_or(e.within(sink.place())),
        e => sink.stop_or(e),
    })?;
    sink.finish()?;
    drop(meter);
    warn(&stats);
    Ok(ExitCode::SUCCESS)
}

fn write(image: &Image, trees: Vec<Entry>, options: Options, sink: &mut Sink) -> Result<Stats> {
    let mut writer = TarWriter::new(image, sink, options);
    for tree in trees {
        for entry in Walk::new(image, tree.path, tree.inode) {
            writer.append(&entry?)?;
        }
    }
    writer.finish()
}

/// Warns about files that the tar lacks.
fn warn(stats: &Stats) {
    for path in &stats.sockets {
        eprintln!(
            "tuff: warning: {}: sockets have no place in a tar",
            escaped(path)
        );
    }
}
