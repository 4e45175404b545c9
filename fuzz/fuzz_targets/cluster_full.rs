//! Extents of a FULL index ascend without gaps, contain the requested offset, and end.
//! Input: four bytes of size, eight of map header, then the index.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| tuff_fuzz::map(
    data,
    tuff_format::inode::Layout::CompressedFull,
    |header| {
        header[4] &= !1;
    }
));
