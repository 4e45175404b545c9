//! A start list that decodes has bounded memory and survives encoding.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tuff_format::start_list::{Decoded, LEN_MAX, Range, StartList};

fuzz_target!(|data: &[u8]| {
    let Ok(Some(Decoded::List(list))) = StartList::decode(data) else {
        return;
    };
    assert!(data.len() <= LEN_MAX);
    assert!(list.ranges.len() * size_of::<Range>() <= 4 << 20);
    let encoded = list.encode();
    // Integers of the input may be shorter if it names devices more often.
    if encoded.len() < LEN_MAX - 32 {
        assert_eq!(StartList::decode(&encoded), Ok(Some(Decoded::List(list))));
    }
});
