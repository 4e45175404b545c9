//! A compressed stream ends in its last byte or an error, whatever it claims to hold; a stream in none of the formats comes
//! out as it went in.

#![no_main]

use libfuzzer_sys::fuzz_target;
use std::io::{Cursor, Read};
use tuff_mkfs::source::compressed::{Compression, open};

fuzz_target!(|data: &[u8]| {
    let Ok((kind, reader)) = open("fuzz", Cursor::new(data.to_vec())) else {
        return;
    };
    let mut out = Vec::new();
    let read = reader.take(16 << 20).read_to_end(&mut out);
    if kind == Compression::Plain {
        assert!(read.is_ok() && out == data);
    }
});
