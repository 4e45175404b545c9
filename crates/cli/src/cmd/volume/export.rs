//! `tuff volume export`: a volume, or a snapshot of it, as a tar.

use super::tar::TarWriter;
use super::{At, Result, mount, snapshot};
use crate::out;
use crate::text::escaped;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tuff_image::Error;

/// Write the files of a volume, or of a snapshot of it, as a tar: PAX, the same bytes every time.
///
/// Hard links, extended attributes, devices, holes (GNU.sparse 1.0), nanosecond times and long names are kept. Sockets
/// have no place in a tar: they are named on standard error.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Directory, file or block device of the volume
    path: PathBuf,
    /// Tar to write; - is standard output
    #[arg(value_name = "TAR", default_value = "-")]
    tar: PathBuf,
    /// Export this snapshot instead of the present
    #[arg(long, value_name = "NAME")]
    snapshot: Option<String>,
}

/// Runs the verb.
pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let mut volume = mount(&args.path, true)?;
    if let Some(name) = &args.snapshot {
        volume = volume
            .open_snapshot(name)
            .map_err(|e| snapshot::told(&args.path, name, e))?;
    }
    let (place, sink): (String, Box<dyn Write>) = if args.tar == Path::new("-") {
        (out::PLACE.to_owned(), Box::new(io::stdout().lock()))
    } else {
        let place = args.tar.display().to_string();
        let file = File::create_new(&args.tar).at(&place)?;
        (place, Box::new(file))
    };
    let mut writer = TarWriter::new(BufWriter::with_capacity(1 << 20, sink));
    let done = writer.volume(&mut volume).and_then(|()| writer.finish());
    let sockets = match done {
        Ok(sockets) => sockets,
        Err(e) => {
            if args.tar != Path::new("-") {
                let _ = std::fs::remove_file(&args.tar);
            }
            return match e {
                super::tar::Failed::Volume(e) => Err(e).at(args.path.display()),
                super::tar::Failed::Out(e) => Err(Error::io(place, "cannot write", e).into()),
            };
        }
    };
    for path in sockets {
        eprintln!(
            "tuff: warning: {}: sockets have no place in a tar",
            escaped(&path)
        );
    }
    Ok(ExitCode::SUCCESS)
}
