//! Checks every structure and all data of an image.

use std::error::Error;
use tuff_erofs::check::{Options, Report, check};
use tuff_erofs::read::{Image, OpenOptions};
use tuff_store::FileStore;

pub(crate) fn check_image(path: &str) -> Result<Report, Box<dyn Error>> {
    let options = OpenOptions {
        verify_checksum: false, // a wrong checksum is a finding, not an error
        ..OpenOptions::default()
    };
    let image = Image::open(FileStore::open(path.as_ref())?, options)?;
    Ok(check(&image, &Options::default(), |_progress| ()))
}

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).ok_or("usage: check IMAGE")?;
    let report = check_image(&path)?;
    report
        .findings
        .iter()
        .for_each(|finding| println!("{finding}"));
    match report.is_clean() {
        true => Ok(()),
        false => Err("the image has errors".into()),
    }
}
