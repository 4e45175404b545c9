//! Largest sizes of what users download.

use super::build::Build;
use super::run::{Result, at};
use std::path::Path;

/// Names, and largest sizes in bytes.
const LIMITS: [(&str, u64); 3] = [
    ("tuff", 25_000_000),
    ("libtuff.so", 14_500_000),
    ("tuff.wasm", 300_000),
];

/// Compiles the program and the libraries for release, and compares their sizes with the limits.
pub(super) fn run_all(build: &Build) -> Result<()> {
    if build.is_dev() {
        return Err("the sizes are those of a release: leave out --dev".to_owned());
    }
    let paths = [
        build.program(None)?,
        build.library()?.join("libtuff_capi.so"),
        build.wasm()?,
    ];
    let mut too_large = Vec::new();
    for ((name, limit), path) in LIMITS.into_iter().zip(&paths) {
        let size = size(path)?;
        println!("{name}: {size} bytes, at most {limit}");
        if size > limit {
            too_large.push(format!("{name} has {size} bytes, more than {limit}"));
        }
    }
    match too_large.is_empty() {
        true => Ok(()),
        false => Err(too_large.join("; ")),
    }
}

fn size(path: &Path) -> Result<u64> {
    let metadata = std::fs::metadata(path).map_err(at(path))?;
    Ok(metadata.len())
}
