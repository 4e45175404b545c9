//! Extracts one path of an image, with everything below it, into a directory.

use std::error::Error;
use tuff_erofs::extract::{Options, extract};
use tuff_erofs::read::{Image, OpenOptions};
use tuff_store::FileStore;

pub(crate) fn extract_path(image: &str, path: &str, target: &str) -> Result<u64, Box<dyn Error>> {
    let image = Image::open(FileStore::open(image.as_ref())?, OpenOptions::default())?;
    let options = Options {
        paths: vec![path.into()],
        ..Options::default()
    };
    let report = extract(&image, target.as_ref(), &options, |_| ())?;
    Ok(report.totals.files)
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [image, path, target] = &args[..] else {
        return Err("usage: extract_path IMAGE PATH DIRECTORY".into());
    };
    println!("{} files", extract_path(image, path, target)?);
    Ok(())
}
