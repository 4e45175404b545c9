//! Archives of cpio end in their last member or an error; every path is relative, without dots; scanning and streaming agree.

#![no_main]

use libfuzzer_sys::fuzz_target;
use std::io::Read;
use tuff_mkfs::source::Content;
use tuff_mkfs::source::cpio::CpioReader;

/// Returns the paths, and whether the archive was read completely. Large members of a small input are not read to
/// their end.
fn paths(mut cpio: CpioReader<'_>) -> (Vec<Vec<u8>>, bool) {
    let (mut paths, mut left) = (Vec::new(), 1 << 24);
    while left > 0 {
        match cpio.next_entry() {
            Ok(Some(entry)) => {
                tuff_fuzz::path(&entry.path);
                if entry.content == Content::Stream {
                    let mut sink = Vec::new();
                    let read = cpio.data().take(1 << 20).read_to_end(&mut sink);
                    left -= sink.len().min(left);
                    if read.is_err() {
                        return (paths, false);
                    }
                }
                paths.push(entry.path);
            }
            Ok(None) => return (paths, true),
            Err(_) => return (paths, false),
        }
    }
    (paths, false)
}

fuzz_target!(|data: &[u8]| {
    let (streamed, whole) = paths(CpioReader::new("fuzz", data));
    let store = tuff_store::MemStore::new(data);
    let (scanned, also) = paths(CpioReader::of_store("fuzz", &store));
    if whole && also {
        assert_eq!(streamed, scanned);
    }
});
