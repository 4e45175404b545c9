//! A walk over a SquashFS image ends; every path is relative, without dots; files are read or refused, in parts as a whole.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tuff_squashfs::{Image, InodeKind};
use tuff_store::MemStore;

/// Bytes that are read of all files.
const READ_MAX: u64 = 16 << 20;

fuzz_target!(|data: &[u8]| {
    let Ok(image) = Image::open(MemStore::new(data)) else {
        return;
    };
    let mut left = READ_MAX;
    for entry in image.walk().take(1000) {
        let Ok(entry) = entry else { return };
        tuff_fuzz::path(&entry.path);
        let _ = image.xattrs(&entry.inode);
        let InodeKind::File(layout) = entry.inode.kind else {
            continue;
        };
        let _ = image.data_runs(&layout);
        let len = layout.size.min(1 << 20).min(left);
        left -= len;
        let Ok(file) = image.content(&layout) else {
            continue;
        };
        let mut whole = vec![0; len as usize];
        if image.read_exact(&file, &mut whole, 0).is_ok() && len > 2 {
            let at = len / 2;
            let mut part = [0; 1];
            let read = image.read_exact(&file, &mut part, at);
            assert!(read.is_ok() && part[0] == whole[at as usize]);
        }
    }
});
