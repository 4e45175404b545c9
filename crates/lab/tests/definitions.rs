//! All shipped definitions make sense, so that mistakes are found before a measurement.

use std::path::Path;
use tuff_lab::campaigns::{commands, serve, start};
use tuff_lab::definition::Definition;

fn check<D: Definition>(folder: &str) {
    let definitions = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../benchmarks/definitions");
    let files = std::fs::read_dir(definitions.join(folder)).unwrap();
    let files = files
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_file());
    let read = |path: std::path::PathBuf| D::read(&path).map(|_| ()).unwrap();
    assert!(files.map(read).count() > 0, "{folder}");
}

#[test]
fn definitions_that_ship_make_sense() {
    check::<commands::definition::Definition>("");
    check::<serve::definition::Definition>("serve");
    check::<start::definition::Definition>("start");
}
