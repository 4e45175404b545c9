//! `tuff cat`: prints files.

use crate::image::ImageArgs;
use crate::out::Out;
use crate::select::entry;
use std::ffi::OsString;
use std::process::ExitCode;
use tuff_erofs::read::{FileType, Image, Inode};
use tuff_erofs::{Error, Place, Result};

/// Write files to standard output
///
/// Symlinks are followed inside the image.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    image: ImageArgs,
    /// Files to write, by their paths
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<OsString>,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    print(args).map_err(|e| args.image.named(e))
}

fn print(args: &Args) -> Result<ExitCode> {
    let image = args.image.open_compared()?;
    let mut out = Out::new();
    for path in &args.paths {
        let file = entry(&image, path, true)?;
        if file.inode.file_type() != FileType::File {
            let advice = match file.inode.is_dir() {
                true => "list it with 'tuff ls', or copy it with 'tuff extract'",
                false => "show it with 'tuff stat'",
            };
            return Err(Error::usage(format_args!(
                "'{}' is a {}, expected a file; {advice}",
                path.display(),
                file.inode.file_type().name()
            )));
        }
        copy(&image, &file.inode, &path.display(), &mut out)?;
    }
    out.finish()
}

/// Writes the content of a file. Errors call the file `name`.
pub(crate) fn copy(
    image: &Image,
    file: &Inode,
    name: &dyn std::fmt::Display,
    out: &mut Out,
) -> Result<()> {
    let mut buf = vec![0; 1 << 20];
    let mut reader = image.reader(file)?;
    loop {
        let n = reader
            .read_some(&mut buf)
            .map_err(|e| e.within(Place::file(name)))?;
        if n == 0 {
            return Ok(());
        }
        out.bytes(&buf[..n])?;
    }
}
