//! A tar of an image can be read back: the same paths in the same order, with the same lengths.

#![no_main]

use libfuzzer_sys::fuzz_target;
use std::io::{self, Write};
use tuff_erofs::tar::TarWriter;
use tuff_erofs::walk::Walk;
use tuff_mkfs::source::tar::TarReader;

/// Output with a size limit: a tar of a hole is as long as the hole.
struct Sink(Vec<u8>);

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > 4 << 20 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fuzz_target!(|data: &[u8]| {
    let Some(image) = tuff_fuzz::open(data) else {
        return;
    };
    let mut sink = Sink(Vec::new());
    let mut writer = TarWriter::new(&image, &mut sink, Default::default());
    let mut paths = Vec::new();
    for entry in Walk::root(&image).into_iter().flatten().take(200) {
        let Ok(entry) = entry else { continue };
        if writer.append(&entry).is_err() {
            return;
        }
        paths.push(entry.path);
    }
    if writer.finish().is_err() {
        return;
    }
    let mut tar = TarReader::new("fuzz", &sink.0[..]);
    let mut read = Vec::new();
    while let Some(entry) = tar.next_entry().expect("a tar of our own") {
        io::copy(&mut tar.data(), &mut io::sink()).expect("a member of our own");
        read.push(entry.path);
    }
    assert_eq!(read, paths);
});
