//! Every entry of a chunk table survives decoding and encoding, in the width of its format.
//! Input: two bytes of format, then the table.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tuff_format::chunk::{Chunk, Format};

fuzz_target!(|data: &[u8]| {
    let Some((format, table)) = data.split_first_chunk::<2>() else {
        return;
    };
    let Ok(format) = Format::decode(u16::from_le_bytes(*format).into()) else {
        return;
    };
    let entries = table.len() / format.entry_len();
    for i in 0..entries {
        let chunk = format.entry(table, i).unwrap();
        if let Chunk::Data { block, .. } = chunk {
            assert!(block.0 >> 48 == 0);
        }
        let mut out = Vec::new();
        format.encode_entry(chunk, &mut out);
        assert_eq!(format.entry(&out, 0), Ok(chunk));
    }
    assert!(format.entry(table, entries).is_err());
});
