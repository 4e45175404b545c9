//! Every file in testdata/invalid is refused without a panic. The README there describes the files.

use std::io::Read;
use std::path::Path;
use tuff_erofs::check::{Options, check};
use tuff_erofs::read::{Image, OpenOptions};
use tuff_mkfs::source::manifest::ManifestReader;
use tuff_mkfs::source::tar::TarReader;
use tuff_store::MemStore;

/// True if the image opens and the check finds nothing.
fn image_is_fine(bytes: &[u8]) -> bool {
    let options = OpenOptions {
        verify_checksum: false,
        ..OpenOptions::default()
    };
    match Image::open(MemStore::new(bytes), options) {
        Ok(image) => check(&image, &Options::default(), |_| ()).is_clean(),
        Err(_) => false,
    }
}

/// True if all members and their data are readable.
fn tar_is_fine(bytes: &[u8]) -> bool {
    let mut tar = TarReader::new("tar", bytes);
    loop {
        match tar.next_entry() {
            Ok(None) => return true,
            Ok(Some(_)) => {
                let mut data = Vec::new();
                if tar.data().read_to_end(&mut data).is_err() {
                    return false;
                }
            }
            Err(_) => return false,
        }
    }
}

/// True if all lines parse.
fn manifest_is_fine(bytes: &[u8]) -> bool {
    let dir = Path::new("/nowhere");
    let mut manifest = ManifestReader::new("manifest", bytes, dir).with_stat(|_| Ok(5));
    loop {
        match manifest.next_entry() {
            Ok(None) => return true,
            Ok(Some(_)) => {}
            Err(_) => return false,
        }
    }
}

#[test]
fn all_invalid_inputs_are_refused() {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/invalid");
    let readme = std::fs::read_to_string(Path::new(dir).join("README.md")).unwrap();
    let mut seen = 0;
    for file in std::fs::read_dir(dir).unwrap() {
        let file = file.unwrap();
        let name = file.file_name().into_string().unwrap();
        if name == "README.md" {
            continue;
        }
        assert!(
            readme.contains(&format!("`{name}`")),
            "{name} is not described in the README"
        );
        let bytes = std::fs::read(file.path()).unwrap();
        let fine = match name.split('-').next() {
            Some("image") => image_is_fine(&bytes),
            Some("tar") => tar_is_fine(&bytes),
            Some("manifest") => manifest_is_fine(&bytes),
            _ => panic!("{name}: the name must start with image-, tar- or manifest-"),
        };
        assert!(!fine, "{name} is accepted");
        seen += 1;
    }
    assert!(seen > 0);
}
