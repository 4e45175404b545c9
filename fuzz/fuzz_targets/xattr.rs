//! The entries of an attribute body end, stay inside it, and survive encoding; so do prefix records.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tuff_format::xattr::{Body, Entry, LongPrefix, split};

fuzz_target!(|data: &[u8]| {
    let _ = split(data);
    if let Ok((prefix, len)) = LongPrefix::decode(data) {
        assert!(len <= data.len());
        let mut out = Vec::new();
        prefix.encode(&mut out);
        assert_eq!(LongPrefix::decode(&out), Ok((prefix, len)));
    }
    let Ok(body) = Body::new(data) else { return };
    assert!(4 * body.shared_ids().count() < data.len());
    for entry in body.entries().flatten() {
        let mut out = Vec::new();
        entry.encode(&mut out);
        assert_eq!(Entry::decode(&out), Ok((entry, out.len())));
    }
});
