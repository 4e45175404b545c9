//! Opening an image, walking its tree and reading everything ends; each part of a file reads as it does in the whole.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Some(image) = tuff_fuzz::open(data) {
        tuff_fuzz::walk(&image);
    }
});
