//! Ranges of an answer are inside of the object.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok(text) = std::str::from_utf8(data) {
        tuff_remote::fuzzing::content_range(text);
    }
});
