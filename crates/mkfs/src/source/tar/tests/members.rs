//! Members: paths, hard links and data.

use super::super::TarReader;
use super::archive::{Archive, GNU, Head, sparse_entry};
use super::{fails, paths, read, warnings};
use crate::source::Kind;
use crate::source::error::SourceErrorKind;
use std::io::Read;

#[test]
fn paths_are_normalised_and_the_root_is_empty() {
    let tar = Archive::new()
        .head(Head::new(b'5', "./"))
        .head(Head::new(b'5', "/"))
        .head(Head::new(b'5', "."))
        .file("./a//b/./c", b"")
        .file("/etc/passwd", b"")
        .head(Head::new(b'1', "hard").link("./etc/passwd"))
        .head(Head::new(b'1', "to-root").link("./"))
        .end();
    let got = read(&tar);
    let paths: Vec<_> = got.iter().map(|got| got.path.as_str()).collect();
    assert_eq!(
        paths,
        ["", "", "", "a/b/c", "etc/passwd", "hard", "to-root"]
    );
    assert_eq!(got[5].kind, Kind::Hardlink(b"etc/passwd".to_vec()));
    assert_eq!(got[6].kind, Kind::Hardlink(b"".to_vec()));
}

#[test]
fn paths_with_dot_dot_are_rejected_by_name() {
    let tar = Archive::new().file("a/../../b", b"").end();
    assert_eq!(
        fails(&tar).to_string(),
        "test.tar: byte 0: member \"a/../../b\": path \"a/../../b\" contains \"..\""
    );
    let tar = Archive::new().head(Head::new(b'1', "x").link("../y")).end();
    assert_eq!(
        fails(&tar).to_string(),
        "test.tar: byte 0: member \"x\": hard link target \"../y\" contains \"..\""
    );
}

#[test]
fn the_root_is_a_directory_or_an_error() {
    let tar = Archive::new().head(Head::new(b'2', ".").link("x")).end();
    assert_eq!(fails(&tar).kind(), SourceErrorKind::Corrupt);
    let tar = Archive::new().file(".", b"").end();
    assert_eq!(fails(&tar).kind(), SourceErrorKind::Corrupt);
}

/// Regression: the archive was refused. GNU tar goes on with `.` as name, which fails for files; libarchive skips.
#[test]
fn members_without_a_name_are_left_out_unless_they_are_the_root() {
    let runs: Vec<u8> = (0..4).flat_map(|n| sparse_entry(n * 512, 1)).collect();
    let head = Head::new(b'S', "").magic(GNU).size(5);
    let head = head.put(386..482, &runs).put(482..483, &[1]);
    let head = head.put(483..495, b"00000004003\0");
    let mut map = vec![0; 512];
    map[..24].copy_from_slice(&sparse_entry(2048, 1));
    let tar = Archive::new()
        .file("", b"without a name")
        .head(Head::new(b'2', "").link("a"))
        .head(Head::new(b'1', "").link("a"))
        .pax(&[("path", b""), ("size", b"700")])
        .head(Head::new(b'0', ""))
        .raw(&[1; 1024])
        .head(head)
        .raw(&map)
        .raw(b"abcde")
        .pad()
        .head(Head::new(b'5', ""))
        .file("a", b"1")
        .end();
    let got = read(&tar);
    assert_eq!((got[0].path.as_str(), &got[0].kind), ("", &Kind::Dir));
    assert_eq!((got[1].path.as_str(), got.len()), ("a", 2));
    assert_eq!(
        warnings(&tar),
        ["test.tar: members without a name were left out: 5"]
    );
}

#[test]
fn repeated_members_are_returned_in_order() {
    let tar = Archive::new()
        .file("a", b"1")
        .file("a", b"2")
        .head(Head::new(b'5', "a"))
        .end();
    let got = read(&tar);
    assert_eq!(paths(&tar), ["a", "a", "a"]);
    assert_eq!(
        (&got[0].bytes[..], &got[1].bytes[..]),
        (&b"1"[..], &b"2"[..])
    );
}

#[test]
fn hard_links_with_a_size_but_no_data_do_not_swallow_the_next_member() {
    let link = Head::new(b'1', "hard").link("file").size(600);
    let tar = Archive::new()
        .file("file", &[b'x'; 600])
        .head(link.clone())
        .file("next", b"1")
        .head(link.clone())
        .end();
    assert_eq!(paths(&tar), ["file", "hard", "next", "hard"]);
    let no_end = Archive::new().file("file", b"").head(link).bytes;
    assert_eq!(paths(&no_end), ["file", "hard"]);
}

#[test]
fn data_of_hard_links_is_skipped() {
    for size in [1, 511, 512, 513, 5000] {
        let data = vec![b'x'; size];
        let link = Head::new(b'1', "hard").link("file");
        let tar = Archive::new()
            .file("file", &data)
            .member(link.clone(), &data)
            .file("next", b"1")
            .pax(&[("mtime", b"1.5")])
            .member(link, &data)
            .file("last", b"2")
            .end();
        let got = read(&tar);
        let paths: Vec<_> = got.iter().map(|got| got.path.as_str()).collect();
        assert_eq!(paths, ["file", "hard", "next", "hard", "last"], "{size}");
        assert_eq!(got[1].bytes, b"", "a link has no bytes of its own");
        assert_eq!(got[4].bytes, b"2");
    }
}

#[test]
fn unread_data_is_skipped() {
    let tar = Archive::new()
        .file("a", &[1; 5000])
        .file("b", &[2; 100])
        .end();
    let mut reader = TarReader::new("t", &tar[..]);
    reader.next_entry().unwrap();
    let mut some = [0; 10];
    reader.data().read_exact(&mut some).unwrap();
    assert_eq!(reader.data().left(), 4990);
    let entry = reader.next_entry().unwrap().unwrap();
    assert_eq!(entry.path, b"b");
    let mut all = Vec::new();
    reader.data().read_to_end(&mut all).unwrap();
    assert_eq!(all, [2; 100]);
    assert!(reader.next_entry().unwrap().is_none());
    assert!(reader.next_entry().unwrap().is_none(), "the end stays");
}
