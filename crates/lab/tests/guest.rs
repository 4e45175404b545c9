//! Short run of the test of images in the kernel of a guest.

use std::path::Path;
use std::process::Command;
use tuff_lab::guest::{Guest, KERNEL_FOLDER};
use tuff_lab::record::Record;

#[test]
fn images_are_the_same_in_the_kernel_of_a_guest() {
    let lab = Path::new(env!("CARGO_BIN_EXE_tuff-lab"));
    let kernel = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(KERNEL_FOLDER);
    // QEMU and a kernel are large, so they are no part of what tests may require.
    if let Err(e) = Guest::find(&kernel) {
        return tuff_testkit::note(format_args!("a guest is not tested: {e}"));
    }
    if !lab.with_file_name("tuff").exists() {
        return tuff_testkit::skipped("a guest: no program tuff beside tuff-lab");
    }
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(lab);
    command
        .args(["guest", "--random", "3", "--kernel"])
        .arg(&kernel);
    command.arg("--records").arg(folder.path());
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    let record = Record::read(&[folder.path()]).unwrap();
    let is_same = |s: &&tuff_lab::record::Sample| s.cell["outcome"] == "identical";
    let same = record.samples.iter().filter(is_same);
    assert!(same.count() > 10, "{text}");
}
