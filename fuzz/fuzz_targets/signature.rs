//! A signature is of one root hash only.
//! Input: the length of a certificate, a little-endian number of 8 bytes, another number, a certificate, and a signature of
//! the root hash of zeros.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tuff_signature::Certificate;

fuzz_target!(|data: &[u8]| {
    let Some(([len, _], data)) = tuff_fuzz::numbers(data) else {
        return;
    };
    let Some((certificate, signature)) = data.split_at_checked(len as usize) else {
        return;
    };
    let Ok(certificate) = Certificate::parse(certificate, "input") else {
        return;
    };
    let _ = certificate.fingerprint();
    if certificate.has_signed(&[0; 32], signature) {
        assert!(!certificate.has_signed(&[1; 32], signature));
    }
});
