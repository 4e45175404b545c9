//! A chunk index decodes and encodes to the same bytes.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    tuff_remote::fuzzing::chunk_index(data);
});
