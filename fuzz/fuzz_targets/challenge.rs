//! Token services of a challenge have TLS, or are on the machine of the registry.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok(text) = std::str::from_utf8(data) {
        tuff_remote::fuzzing::challenge(text);
    }
});
