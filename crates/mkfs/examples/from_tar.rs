//! Builds an image from a tar stream, plain or compressed, of any reader: here a file and standard input.

use std::fs::File;
use std::path::Path;
use tuff_mkfs::{Error, Options, Progress, Source, Summary, TarStream, build};
use tuff_store::Target;

pub(crate) fn convert(
    tar: impl std::io::Read + Send + 'static,
    image: &Path,
) -> Result<Summary, Error> {
    let options = Options::from_settings([("compress", "zstd"), ("kernel", "6.12")])?;
    let sources = [Source::TarStream(TarStream::new("layer", tar))];
    let target = Target::Path(image.to_owned());
    build(&sources, &options, &target, &Progress::default())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let image = args.next().ok_or("usage: from_tar IMAGE [TAR]")?;
    let summary = match args.next() {
        Some(tar) => convert(File::open(tar)?, image.as_ref())?,
        None => convert(std::io::stdin(), image.as_ref())?,
    };
    println!("{} files", summary.stats.files);
    Ok(())
}
