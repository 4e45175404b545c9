//! A directory block has at least one entry, and every name that comes out is 1 to 255 bytes long and inside the block.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tuff_format::dirent::Block;

fuzz_target!(|data: &[u8]| {
    let Ok(block) = Block::new(data) else { return };
    assert!(block.count() >= 1 && 12 * block.count() <= data.len());
    for entry in block.entries().flatten() {
        assert!((1..=255).contains(&entry.name.len()));
        assert!(data.as_ptr_range().contains(&entry.name.as_ptr()));
    }
    if let Ok(used) = block.used() {
        assert!(used <= data.len());
    }
});
