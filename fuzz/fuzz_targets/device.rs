//! A device slot that decodes survives encoding, and needs 48 bits only where that is allowed.
//! Input: one byte that allows it, then the slot.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tuff_format::device::Slot;

fuzz_target!(|data: &[u8]| {
    let Some((&first, slot)) = data.split_first() else {
        return;
    };
    let wide = first & 1 != 0;
    if let Ok(slot) = Slot::decode(slot, wide) {
        let width = if wide { 48 } else { 32 };
        assert!(slot.blocks >> width == 0 && slot.uniaddr.0 >> width == 0);
        assert_eq!(Slot::decode(&slot.encode(), wide), Ok(slot));
    }
});
