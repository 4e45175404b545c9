//! Where an archive ends, and where it ends too early.

use super::super::{TarReader, scan_file};
use super::archive::{Archive, Head};
use super::{fails, one, paths};
use crate::source::error::SourceErrorKind;
use std::io::{self, Read};

#[test]
fn the_end_may_be_marked_twice_once_or_not_at_all() {
    let archive = Archive::new().file("a", b"1");
    assert_eq!(paths(&archive.clone().end()), ["a"]);
    assert_eq!(paths(&archive.clone().raw(&[0; 512]).bytes), ["a"]);
    assert_eq!(paths(&archive.clone().raw(&[0; 100]).bytes), ["a"]);
    assert_eq!(paths(&archive.bytes), ["a"]);
    assert_eq!(paths(&[0; 10240]), [""; 0]);
    assert_eq!(paths(&[0; 512]), [""; 0]);
}

/// Seen: images of EROFS and ext4, whose first 1024 bytes are zeros, and what a pipe holds whose writer had failed, were
/// archives without members. Cost: an empty image and exit code 0. Cause: what follows the end of an archive is not looked
/// at. Cure: where no member came before the end, it is.
#[test]
fn what_is_no_tar_is_not_an_empty_one() {
    assert_eq!(
        fails_at(b""),
        "test.tar: byte 0: nothing is there; an archive without members has blocks of zeros"
    );
    for at in [600, 1024 + 1080, 65536 + 64] {
        let mut image = vec![0; 100_000];
        image[at] = 1;
        assert_eq!(
            fails_at(&image),
            "test.tar: byte 0: zeros where the first member should be, and other bytes behind them: this is no tar"
        );
    }
}

fn fails_at(bytes: &[u8]) -> String {
    let stream = TarReader::new("test.tar", bytes).next_entry().unwrap_err();
    let scan = scan_file("test.tar", &tuff_store::MemStore::new(bytes.to_vec())).next_entry();
    assert_eq!(scan.unwrap_err().to_string(), stream.to_string());
    stream.to_string()
}

#[test]
fn padding_may_be_missing_at_the_end() {
    let tar = Archive::new()
        .head(Head::new(b'0', "a").size(3))
        .raw(b"abc");
    assert_eq!(one(&tar.bytes).bytes, b"abc");
}

#[test]
fn whatever_follows_the_end_is_passed_over() {
    let mut tar = Archive::new().file("a", b"1").end();
    tar.extend(b"garbage".repeat(1000));
    assert_eq!(paths(&tar), ["a"]);
    let mut reader = TarReader::new("t", &tar[..]);
    while reader.next_entry().unwrap().is_some() {}
    assert_eq!(reader.finish().unwrap(), 7000);
}

#[test]
fn zeros_between_members_are_a_loss_and_an_error() {
    let tar = Archive::new()
        .file("a", b"1")
        .raw(&[0; 512])
        .file("b", b"2")
        .end();
    assert_eq!(
        fails(&tar).to_string(),
        "test.tar: byte 1024: a single block of zeros, with another member after it"
    );
}

#[test]
fn a_member_that_is_cut_short_is_named_with_what_is_missing() {
    let tar = Archive::new().file("a", b"1").file("b/c", &[2; 5000]).bytes;
    let cut = &tar[..1536 + 123];
    assert_eq!(
        fails(cut).to_string(),
        "test.tar: byte 1024: member \"b/c\": stored bytes end early, expected 5000, found 123"
    );
    let mut reader = TarReader::new("test.tar", cut);
    reader.next_entry().unwrap();
    reader.next_entry().unwrap();
    let error = reader.next_entry().unwrap_err();
    assert_eq!(
        error.to_string(),
        "test.tar: byte 1024: member \"b/c\": stored bytes end early, expected 5000, found 123",
        "also when the data is not read"
    );
    let error = reader.next_entry().unwrap_err();
    assert_eq!(error.kind(), SourceErrorKind::Usage);
}

#[test]
fn a_header_that_is_cut_short_is_an_error() {
    let tar = Archive::new().file("a", b"").file("b", b"").bytes;
    assert_eq!(
        fails(&tar[..600]).to_string(),
        "test.tar: byte 512: header is cut short, expected 512 bytes, found 88"
    );
}

#[test]
fn absurd_sizes_stop_at_limits_without_memory() {
    for (flag, size) in [
        (b'x', 17 << 20),
        (b'g', 17 << 20),
        (b'L', 2 << 20),
        (b'K', 2 << 20),
    ] {
        let tar = Archive::new().head(Head::new(flag, "x").size(size)).end();
        let error = fails(&tar);
        assert_eq!(error.kind(), SourceErrorKind::Limit, "{error}");
    }
    // Within the limit, but not there: found out after what there is.
    let tar = Archive::new()
        .head(Head::new(b'x', "x").size(16 << 20))
        .end();
    assert_eq!(
        fails(&tar).to_string(),
        "test.tar: byte 0: member \"x\": stored bytes end early, expected 16777216, found 1024"
    );
    let head = Head::new(b'0', "f").put(
        124..136,
        &[0x80, 0, 0, 0, 0x7f, 255, 255, 255, 255, 255, 255, 255],
    );
    let tar = Archive::new().head(head).end();
    assert!(
        fails(&tar)
            .to_string()
            .ends_with("expected 9223372036854775807, found 1024")
    );
}

/// A reader whose disk fails.
struct Broken<'a>(&'a [u8]);

impl Read for Broken<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self.0.read(buf)? {
            0 => Err(io::Error::from_raw_os_error(5)),
            n => Ok(n),
        }
    }
}

#[test]
fn errors_of_the_system_say_where_they_struck() {
    let tar = Archive::new().file("a", &[1; 5000]).bytes;
    let mut reader = TarReader::new("test.tar", Broken(&tar[..2048]));
    reader.next_entry().unwrap();
    let error = reader.next_entry().unwrap_err();
    assert_eq!(error.kind(), SourceErrorKind::Io);
    let message = error.to_string();
    assert!(
        message.starts_with("test.tar: byte 512: member \"a\": cannot read: "),
        "{message}"
    );
}
