//! `tuff tar`: an image as a tar stream.

use crate::image::ImageArgs;
use crate::out;
use crate::progress::on_signal;
use crate::select::select_trees;
use crate::text::escaped;
use std::ffi::OsString;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use tuff_image::read::Image;
use tuff_image::tar::{Options, Stats, TarWriter};
use tuff_image::walk::{Entry, Walk};
use tuff_image::{Error, Result};
use tuff_store::{Output, Target};

/// Write an image as a tar: PAX, the same bytes every time.
///
/// Hard links, extended attributes and ACLs (SCHILY.xattr, SCHILY.acl), devices, holes (GNU.sparse 1.0), nanosecond
/// times, long names and large numbers are kept. Sockets have no place in a tar: they are named on standard error.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    image: ImageArgs,
    /// Tar to write; - is standard output
    #[arg(value_name = "TAR", default_value = "-")]
    tar: PathBuf,
    /// Paths or patterns, each with all below it (default: everything)
    #[arg(value_name = "PATH|GLOB")]
    paths: Vec<OsString>,
    /// Write holes as zeros
    #[arg(long)]
    no_sparse: bool,
    /// Leave extended attributes out
    #[arg(long)]
    no_xattrs: bool,
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let image = args.image.open()?;
    let trees = select_trees(&image, &args.paths)?;
    let options = Options {
        sparse: !args.no_sparse,
        xattrs: !args.no_xattrs,
    };
    let (name, target) = if args.tar == Path::new("-") {
        (out::PLACE.to_owned(), None)
    } else {
        (
            args.tar.display().to_string(),
            Some(Target::Path(args.tar.clone())),
        )
    };
    // Standard output gets the stream as it comes; a file gets its name only when it is complete. Signals are watched
    // before there is anything that they would leave behind.
    let stop = match target {
        Some(_) => on_signal(),
        None => Arc::default(),
    };
    let output = target.as_ref().map(Output::create).transpose();
    let output = output.map_err(|e| Error::io(&name, "cannot create", e))?;
    let sink: Box<dyn Write + '_> = match &output {
        Some(output) => Box::new(Sequential {
            output,
            at: 0,
            stop: stop.clone(),
        }),
        None => Box::new(io::stdout().lock()),
    };
    let stats = write(&image, trees, options, sink).map_err(|e| match e {
        _ if stop.load(Relaxed) => Error::io(&name, "stopped", io::ErrorKind::Interrupted.into()),
        // What failed is the output, and not what a member says.
        Error::Io(..) if e.place() == "tar" => e.within(&name),
        e => e,
    })?;
    if let Some(output) = output {
        output
            .finish(stats.tar_bytes, false)
            .map_err(|e| Error::io(&name, "cannot finish", e))?;
    }
    warn(&stats);
    Ok(ExitCode::SUCCESS)
}

fn write(
    image: &Image,
    trees: Vec<Entry>,
    options: Options,
    sink: Box<dyn Write + '_>,
) -> Result<Stats> {
    let mut writer = TarWriter::new(image, BufWriter::with_capacity(1 << 20, sink), options);
    for tree in trees {
        for entry in Walk::new(image, tree.path, tree.inode) {
            writer.append(&entry?)?;
        }
    }
    writer.finish()
}

/// Names what is missing.
fn warn(stats: &Stats) {
    for path in &stats.sockets {
        eprintln!(
            "tuff: warning: {}: sockets have no place in a tar",
            escaped(path)
        );
    }
}

/// Writes one piece behind the other.
struct Sequential<'a> {
    output: &'a Output,
    at: u64,
    /// Set to give up, so that what was written goes away.
    stop: Arc<AtomicBool>,
}

impl Write for Sequential<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.stop.load(Relaxed) {
            // Not `Interrupted`: a writer would try again.
            return Err(io::Error::other("stopped"));
        }
        self.output.write_at(bytes, self.at)?;
        self.at += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
