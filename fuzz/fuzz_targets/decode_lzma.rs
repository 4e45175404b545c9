//! Lzma: what decodes whole decodes to the same bytes as a prefix, of any length; nothing is written past the output.
//! Input: three bytes of output length, then the stream.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| tuff_fuzz::decode(data, tuff_codec::Algorithm::Lzma));
