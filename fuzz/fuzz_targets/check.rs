//! A check ends in a report, the same each time.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tuff_erofs::check::{Options, check};

fuzz_target!(|data: &[u8]| {
    let Some(image) = tuff_fuzz::open(data) else {
        return;
    };
    let options = Options {
        threads: 1,
        findings: 100,
        ..Options::default()
    };
    let first = check(&image, &options, |_| ());
    let second = check(&image, &options, |_| ());
    assert_eq!(first.findings, second.findings);
});
