//! End of an archive, and truncated archives.

use super::super::{TarReader, scan_file};
use super::archive::{Archive, Head};
use super::{fails, paths, warnings};
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

/// Regression: EROFS and ext4 images, which begin with 1024 zeros, and empty pipes of failed
/// writers counted as empty archives. Data after the end was ignored, so the result was an empty
/// image and exit code 0.
#[test]
fn other_data_is_not_an_empty_tar() {
    assert_eq!(
        fails_at(b""),
        "test.tar: byte 0: the archive is empty; an archive without members has blocks of zeros"
    );
    assert_eq!(
        fails_at(&[0; 500]),
        "test.tar: byte 0: not a tar: 500 bytes, and no block of 512"
    );
    for at in [600, 1024 + 1080, 65536 + 64] {
        let mut image = vec![0; 100_000];
        image[at] = 1;
        assert_eq!(
            fails_at(&image),
            "test.tar: byte 0: zeros instead of the first member, followed by other bytes: not a tar"
        );
    }
}

fn fails_at(bytes: &[u8]) -> String {
    let stream = TarReader::new("test.tar", bytes).next_entry().unwrap_err();
    let scan = scan_file("test.tar", &tuff_store::MemStore::new(bytes.to_vec())).next_entry();
    assert_eq!(scan.unwrap_err().to_string(), stream.to_string());
    stream.to_string()
}

/// Regression: an archive that was cut in the zeros after a member was accepted, and later members were missing.
/// GNU tar and libarchive report it.
#[test]
fn an_archive_that_ends_within_the_zeros_after_a_member_is_an_error() {
    let tar = Archive::new().file("a", b"1").file("b", b"abc").bytes;
    for len in [1024 + 512 + 3, 1024 + 512 + 300, 2047] {
        let found = len - 1024 - 512 - 3;
        assert_eq!(
            fails(&tar[..len]).to_string(),
            format!(
                "test.tar: byte 1024: member \"b\": the archive ends within the zeros after the member, \
                 expected 509, found {found}: it is cut, and later members are missing"
            )
        );
    }
}

/// The only complete archives are the empty prefix of whole members, and those with zeros at the end.
#[test]
fn every_cut_is_an_error_or_between_two_members_a_warning() {
    let tar = Archive::new()
        .pax(&[("uid", b"5")])
        .file("a", &[1; 600])
        .long(b'L', b"long")
        .file("b", b"")
        .head(Head::new(b'2', "c").link("a"))
        .file("d", b"x")
        .bytes;
    // Ends of members: after the data of "a", after "b", "c" and "d".
    let ends = [1024 + 512 + 1024, 4096, 4608, 5632];
    assert_eq!(tar.len(), 5632);
    for len in 1..=tar.len() {
        let (_, error) = super::by_stream(&tar[..len]);
        let (_, other) = super::by_position(&tar[..len]);
        assert_eq!(
            error.as_ref().map(ToString::to_string),
            other.map(|e| e.to_string()),
            "{len} bytes"
        );
        assert_eq!(error.is_none(), ends.contains(&len), "{len} bytes");
        if error.is_none() {
            assert_eq!(
                warnings(&tar[..len]),
                [
                    "test.tar: no blocks of zeros mark the end of the archive; if it is cut, members are missing"
                ]
            );
        }
    }
    let ended = [&tar[..], &[0; 512]].concat();
    assert_eq!(warnings(&ended), [""; 0]);
}

#[test]
fn data_after_the_end_is_ignored() {
    let mut tar = Archive::new().file("a", b"1").end();
    tar.extend(b"garbage".repeat(1000));
    assert_eq!(paths(&tar), ["a"]);
    let mut reader = TarReader::new("t", &tar[..]);
    while reader.next_entry().unwrap().is_some() {}
    assert_eq!(reader.finish().unwrap(), 7000);
}

#[test]
fn zeros_between_members_are_an_error() {
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
fn a_truncated_member_is_named_with_its_lengths() {
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
fn a_truncated_header_is_an_error() {
    let tar = Archive::new().file("a", b"").file("b", b"").bytes;
    assert_eq!(
        fails(&tar[..600]).to_string(),
        "test.tar: byte 512: header is cut short, expected 512 bytes, found 88"
    );
}

#[test]
fn excessive_sizes_are_limit_errors_without_allocation() {
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
    // Within the limit but truncated: detected after reading the available data.
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

/// Reader that fails like a disk.
struct FailingReader<'a>(&'a [u8]);

impl Read for FailingReader<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self.0.read(buf)? {
            0 => Err(io::Error::from_raw_os_error(5)),
            n => Ok(n),
        }
    }
}

#[test]
fn system_errors_have_their_position() {
    let tar = Archive::new().file("a", &[1; 5000]).bytes;
    let mut reader = TarReader::new("test.tar", FailingReader(&tar[..2048]));
    reader.next_entry().unwrap();
    let error = reader.next_entry().unwrap_err();
    assert_eq!(error.kind(), SourceErrorKind::Io);
    let message = error.to_string();
    assert!(
        message.starts_with("test.tar: byte 512: member \"a\": cannot read: "),
        "{message}"
    );
}
