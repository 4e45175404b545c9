//! An extraction ends with the default limits, writes only its target, and is the same on one thread and on three.

#![no_main]

use libfuzzer_sys::fuzz_target;
use std::path::Path;
use tuff_erofs::extract::{Options, extract};

fuzz_target!(|data: &[u8]| {
    let Some(image) = tuff_fuzz::open(data) else {
        return;
    };
    let around = tuff_fuzz::Around::new();
    let mut totals = Vec::new();
    for (name, threads) in [("one", 1), ("three", 3)] {
        let target = around.path().join(name);
        let options = Options {
            keep_going: true,
            owners: Some(false),
            threads,
            ..Options::default()
        };
        let report = extract(&image, &target, &options, |_| ());
        totals.push(
            report
                .ok()
                .map(|r| (r.totals.files, r.totals.directories, r.totals.symlinks)),
        );
    }
    // The files of a damaged image that precede a limit depend on the threads; without a limit nothing does.
    if let [Some(one), Some(three)] = totals[..] {
        assert_eq!(one, three);
    }
    for entry in std::fs::read_dir(around.path()).expect("it is there") {
        let name = entry.expect("it can be listed").file_name();
        assert!(
            Path::new(&name) == "one" || Path::new(&name) == "three",
            "{name:?} is outside the target"
        );
    }
});
