//! A manifest ends in its last line or an error; every path is relative, without dots; no file is touched.

#![no_main]

use libfuzzer_sys::fuzz_target;
use std::path::Path;
use tuff_mkfs::source::manifest::ManifestReader;

fuzz_target!(|data: &[u8]| {
    let mut manifest =
        ManifestReader::new("fuzz", data, Path::new("/nowhere")).with_stat(|_| Ok(5));
    while let Ok(Some(entry)) = manifest.next_entry() {
        tuff_fuzz::path(&entry.path);
        assert!(entry.xattrs.is_sorted_by(|a, b| a.0 < b.0));
    }
});
