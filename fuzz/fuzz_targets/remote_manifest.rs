//! Images of a manifest of a registry have digests, and chunk indexes inside of their blobs.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    tuff_remote::fuzzing::manifest(data);
});
