//! Compression records that decode use no more bytes than there are, and survive encoding.
//! Input: two bytes of algorithms, then the records.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tuff_format::config::Configs;

fuzz_target!(|data: &[u8]| {
    let Some((algorithms, records)) = data.split_first_chunk::<2>() else {
        return;
    };
    let algorithms = u16::from_le_bytes(*algorithms);
    if let Ok((configs, used)) = Configs::decode(records, 1152, algorithms) {
        assert!(used <= records.len());
        assert_eq!(configs.algorithms(), algorithms);
        let (again, _) = Configs::decode(&configs.encode(), 1152, algorithms).unwrap();
        assert_eq!(again, configs);
    }
});
