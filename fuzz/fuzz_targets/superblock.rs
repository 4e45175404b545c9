//! A superblock that decodes survives encoding; the checksum of any bytes is a number, not a panic.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tuff_format::superblock::{Superblock, checksum, seal};

fuzz_target!(|data: &[u8]| {
    let mut sealed = data.to_vec();
    seal(&mut sealed);
    let _ = checksum(&sealed);
    if let Ok(sb) = Superblock::decode(data) {
        assert_eq!(Superblock::decode(&sb.encode()).as_ref(), Ok(&sb));
        let _ = (sb.algorithms(), sb.label().len(), sb.trusts_filters());
    }
});
