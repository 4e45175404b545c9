//! Headers of every format: names, types, numbers and checksums.

use super::archive::{Archive, GNU, Head};
use super::{ReadEntry, fails, paths, read};
use crate::source::error::SourceErrorKind;
use crate::source::{Device, Kind, Meta};

#[test]
fn v7_headers_have_no_prefix_and_tell_directories_by_a_slash() {
    let garbage = [b'7'; 512 - 265];
    let v7 = |name| Head::new(0, name).magic(&[0; 8]).put(265..512, &garbage);
    let tar = Archive::new()
        .head(v7("dir/").mode(0o755))
        .member(v7("dir/file").mode(0o640).uid(7).mtime(99), b"data")
        .head(Head::new(b'1', "dir/hard").magic(&[0; 8]).link("dir/file"))
        .end();
    let got = read(&tar);
    assert_eq!(got[0].kind, Kind::Dir);
    assert_eq!(got[0].path, "dir");
    assert_eq!(
        got[1],
        ReadEntry {
            path: "dir/file".into(),
            kind: Kind::File { size: 4 },
            meta: Meta {
                mode: 0o640,
                uid: 7,
                gid: 7,
                mtime: 99,
                mtime_nsec: 0
            },
            xattrs: vec![],
            bytes: b"data".to_vec(),
            runs: None,
        }
    );
    assert_eq!(got[2].kind, Kind::Hardlink(b"dir/file".to_vec()));
}

#[test]
fn ustar_names_are_prefix_and_name() {
    let prefix = "p/".repeat(77) + "q";
    let tar = Archive::new()
        .head(Head::new(b'0', "name").put(345..500, prefix.as_bytes()))
        .end();
    assert_eq!(paths(&tar), [format!("{prefix}/name")]);
}

#[test]
fn a_name_may_fill_its_field_to_the_edge() {
    let name = "n".repeat(100);
    let tar = Archive::new().head(Head::new(b'0', &name)).end();
    assert_eq!(paths(&tar), [name]);
}

#[test]
fn star_headers_have_a_shorter_prefix() {
    let head = Head::new(b'0', "name")
        .put(345..476, b"prefix")
        .put(476..508, b"00000000001 00000000002 ")
        .put(508..512, b"tar\0");
    assert_eq!(paths(&Archive::new().head(head).end()), ["prefix/name"]);
}

#[test]
fn gnu_headers_have_no_prefix() {
    let head = Head::new(b'0', "name")
        .magic(GNU)
        .put(345..357, b"14534267011\0");
    assert_eq!(paths(&Archive::new().head(head).end()), ["name"]);
}

#[test]
fn every_file_type_is_known() {
    let tar = Archive::new()
        .head(Head::new(b'5', "dir").mode(0o1755).size(4096))
        .head(Head::new(b'2', "link").link("../target").size(9))
        .head(Head::new(b'3', "char").device(5, 1))
        .head(Head::new(b'4', "block").device(259, 1_048_575))
        .head(Head::new(b'6', "fifo"))
        .member(Head::new(b'7', "contiguous"), b"x")
        .member(Head::new(b'D', "dumpdir").magic(GNU), b"Yfile\0\0")
        .end();
    let got = read(&tar);
    let kinds: Vec<_> = got.iter().map(|got| &got.kind).collect();
    assert_eq!(
        kinds,
        [
            &Kind::Dir,
            &Kind::Symlink(b"../target".to_vec()),
            &Kind::Char(Device { major: 5, minor: 1 }),
            &Kind::Block(Device {
                major: 259,
                minor: 1_048_575
            }),
            &Kind::Fifo,
            &Kind::File { size: 1 },
            &Kind::Dir,
        ]
    );
    assert_eq!(got[0].meta.mode, 0o1755);
}

#[test]
fn base_256_numbers_are_read_everywhere() {
    let size = Archive::new().head(
        Head::new(b'0', "big")
            .magic(GNU)
            .put(124..136, &[0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3]),
    );
    let tar = size
        .raw(b"abc")
        .pad()
        .head(
            Head::new(b'3', "dev")
                .magic(GNU)
                .put(108..116, &number(3_000_000_000))
                .put(116..124, &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xfe])
                .put(
                    136..148,
                    &[
                        0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x9c,
                    ],
                )
                .put(329..337, &number(4095))
                .put(337..345, &number(1_048_575)),
        )
        .end();
    let got = read(&tar);
    assert_eq!(got[0].bytes, b"abc");
    let meta = got[1].meta;
    assert_eq!(
        (meta.uid, meta.gid, meta.mtime),
        (3_000_000_000, 0xffff_fffe, -100)
    );
    assert_eq!(
        got[1].kind,
        Kind::Char(Device {
            major: 4095,
            minor: 1_048_575
        })
    );
}

#[test]
fn invalid_numbers_are_rejected() {
    let bad = |field: std::ops::Range<usize>, bytes: &[u8]| {
        let head = Head::new(b'3', "dev").put(field, bytes);
        fails(&Archive::new().head(head).end()).to_string()
    };
    assert!(bad(100..108, b"rw-r--r-").contains("mode is not a number"));
    assert!(bad(108..116, &number(1 << 40)).contains("uid 1099511627776 does not fit"));
    assert!(bad(329..337, &[0xff; 8]).contains("device number -1,0"));
    // EROFS has 12 and 20 bits. Truncation would give another device, and 0,0 is a whiteout in an
    // overlay.
    assert!(bad(329..337, &number(4096)).ends_with(
        "member \"dev\": device number 4096,0: expected a major below 4096 and a minor below 1048576"
    ));
    assert!(bad(337..345, &number(1 << 20)).contains("device number 0,1048576: expected"));
    let negative = Head::new(b'0', "f").put(124..136, &[0xff; 12]);
    assert!(
        fails(&Archive::new().head(negative).end())
            .to_string()
            .contains("size is negative: -1")
    );
}

fn number(value: i64) -> [u8; 8] {
    let mut bytes = value.to_be_bytes();
    bytes[0] |= 0x80;
    bytes
}

#[test]
fn volume_labels_and_acl_text_are_skipped() {
    let tar = Archive::new()
        .head(Head::new(b'V', "label").magic(GNU))
        .member(Head::new(b'A', "acl"), b"user::rwx")
        .file("a", b"1")
        .end();
    assert_eq!(paths(&tar), ["a"]);
}

#[test]
fn unknown_types_are_rejected_by_name() {
    let tar = Archive::new()
        .file("a", b"")
        .head(Head::new(b'Q', "odd"))
        .end();
    let error = fails(&tar);
    assert_eq!(
        error.to_string(),
        "test.tar: byte 512: member \"odd\": type flag \"Q\" is not known"
    );
    assert_eq!(error.kind(), SourceErrorKind::Unsupported);
    let tar = Archive::new()
        .head(Head::new(b'M', "rest").magic(GNU))
        .end();
    assert_eq!(fails(&tar).kind(), SourceErrorKind::Unsupported);
}

#[test]
fn a_wrong_checksum_names_its_byte() {
    let mut tar = Archive::new().file("a", b"1").file("b", b"2").end();
    tar[1024] ^= 1;
    let message = fails(&tar).to_string();
    assert!(
        message.starts_with("test.tar: byte 1024: header checksum is wrong, expected "),
        "{message}"
    );
    assert_eq!(
        fails(b"not a tar at all".repeat(64).as_slice()).byte(),
        Some(0)
    );
}

#[test]
fn checksums_of_signed_bytes_are_accepted() {
    let mut block = Head::new(b'0', "caf\u{e9}").block();
    block[148..156].fill(b' ');
    let sum: i32 = block.iter().map(|&byte| i32::from(byte as i8)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    assert_eq!(paths(&Archive::new().raw(&block).end()), ["caf\u{e9}"]);
}
