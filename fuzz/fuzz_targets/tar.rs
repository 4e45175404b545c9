//! A tar ends in its last member or an error; every path is relative, without dots; scanning and streaming agree.

#![no_main]

use libfuzzer_sys::fuzz_target;
use std::io::Read;
use tuff_mkfs::source::tar::{TarReader, scan_file};

fuzz_target!(|data: &[u8]| {
    let mut streamed = Vec::new();
    let mut tar = TarReader::new("fuzz", data);
    let whole = loop {
        match tar.next_entry() {
            Ok(Some(entry)) => {
                tuff_fuzz::path(&entry.path);
                // Reads the actual data, not what a sparse map claims.
                let mut sink = Vec::new();
                let read = tar.data().take(1 << 20).read_to_end(&mut sink);
                assert!(sink.len() <= data.len());
                streamed.push(entry.path);
                if read.is_err() {
                    break false;
                }
            }
            Ok(None) => break true,
            Err(_) => break false,
        }
    };
    let store = tuff_store::MemStore::new(data);
    let mut scan = scan_file("fuzz", &store);
    let mut scanned = Vec::new();
    while let Ok(Some(entry)) = scan.next_entry() {
        scanned.push(entry.path);
    }
    if whole {
        assert_eq!(streamed, scanned);
    }
});
