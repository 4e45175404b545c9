//! Extended headers: POSIX records, global headers, and GNU long names.

use super::archive::{Archive, GNU, Head, record};
use super::{fails, one, paths, read, warnings};
use crate::source::error::SourceErrorKind;
use crate::source::{Device, Kind, Meta};

#[test]
fn pax_records_replace_what_the_header_says() {
    let long = "d/".repeat(300) + "file";
    let tar = Archive::new()
        .pax(&[
            ("path", long.as_bytes()),
            ("size", b"3"),
            ("uid", b"3000000000"),
            ("gid", b"70000"),
            ("uname", b"nobody"),
            ("mtime", b"1700000000.123456789"),
            ("atime", b"nonsense is not read"),
            ("SCHILY.acl.access", b"user::rw-,group::r--,other::r--"),
            ("hdrcharset", b"BINARY"),
        ])
        .head(Head::new(b'0', "short").size(0o7777).mtime(5))
        .raw(b"abc")
        .pad()
        .end();
    let got = one(&tar);
    assert_eq!(got.path, long);
    assert_eq!(got.bytes, b"abc");
    assert_eq!(got.xattrs, []);
    assert_eq!(
        got.meta,
        Meta {
            mode: 0o644,
            uid: 3_000_000_000,
            gid: 70_000,
            mtime: 1_700_000_000,
            mtime_nsec: 123_456_789,
        }
    );
}

#[test]
fn pax_link_paths_apply_to_both_kinds_of_link() {
    let target = "t/".repeat(200) + "end";
    let tar = Archive::new()
        .pax(&[("linkpath", target.as_bytes())])
        .head(Head::new(b'2', "sym").link("short"))
        .pax(&[("linkpath", format!("./{target}").as_bytes())])
        .head(Head::new(b'1', "hard").link("short"))
        .end();
    let got = read(&tar);
    assert_eq!(got[0].kind, Kind::Symlink(target.clone().into_bytes()));
    assert_eq!(got[1].kind, Kind::Hardlink(target.into_bytes()));
}

#[test]
fn pax_records_hold_for_one_member_only() {
    let tar = Archive::new()
        .pax(&[("uid", b"5"), ("SCHILY.xattr.user.a", b"1")])
        .file("a", b"")
        .file("b", b"")
        .end();
    let got = read(&tar);
    assert_eq!((got[0].meta.uid, got[0].xattrs.len()), (5, 1));
    assert_eq!((got[1].meta.uid, got[1].xattrs.len()), (0, 0));
}

#[test]
fn global_records_hold_until_others_replace_them() {
    let tar = Archive::new()
        .global(&[
            ("comment", b"0123456789abcdef"),
            ("uid", b"5"),
            ("gid", b"6"),
            ("SCHILY.xattr.user.g", b"global"),
        ])
        .file("a", b"")
        .pax(&[("uid", b"7"), ("gid", b""), ("SCHILY.xattr.user.g", b"own")])
        .file("b", b"")
        .global(&[("uid", b"8"), ("mtime", b"-1")])
        .file("c", b"")
        .end();
    let got = read(&tar);
    let ids: Vec<_> = got
        .iter()
        .map(|got| (got.meta.uid, got.meta.gid, got.meta.mtime))
        .collect();
    assert_eq!(ids, [(5, 6, 0), (7, 0, 0), (8, 6, -1)]);
    let xattr = |at: usize| got[at].xattrs[0].1.as_slice();
    assert_eq!(
        (xattr(0), xattr(1), xattr(2)),
        (&b"global"[..], &b"own"[..], &b"global"[..])
    );
}

#[test]
fn an_archive_of_one_global_header_is_empty() {
    let tar = Archive::new().global(&[("comment", b"x")]).end();
    assert_eq!(read(&tar), []);
}

#[test]
fn global_records_of_a_single_member_are_rejected() {
    for key in ["size", "GNU.sparse.major"] {
        let tar = Archive::new().global(&[(key, b"1")]).file("a", b"").end();
        assert_eq!(fails(&tar).kind(), SourceErrorKind::Unsupported, "{key}");
    }
}

/// Regression: the archive was refused.
#[test]
fn a_name_in_a_global_header_is_left_out_with_a_warning() {
    let tar = Archive::new()
        .global(&[("path", b"all"), ("linkpath", b"all"), ("uid", b"5")])
        .file("a", b"1")
        .head(Head::new(b'2', "b").link("own"))
        .end();
    let got = read(&tar);
    assert_eq!((got[0].path.as_str(), got[0].meta.uid), ("a", 5));
    assert_eq!(got[1].kind, Kind::Symlink(b"own".to_vec()));
    assert_eq!(
        warnings(&tar),
        ["test.tar: path or linkpath in a global extended header was left out"]
    );
}

/// Regression: the records of all of them were combined. GNU tar takes the last header only.
#[test]
fn of_several_extended_headers_before_a_member_the_last_counts() {
    let tar = Archive::new()
        .pax(&[
            ("path", b"first"),
            ("gid", b"1"),
            ("SCHILY.xattr.user.a", b"1"),
        ])
        .pax(&[("uid", b"2")])
        .file("a", b"")
        .end();
    let got = one(&tar);
    assert_eq!((got.meta.uid, got.meta.gid), (2, 0));
    assert_eq!((got.path.as_str(), got.xattrs.len()), ("a", 0));
}

#[test]
fn solaris_extended_headers_are_pax() {
    let body = record("uid", b"9");
    let tar = Archive::new()
        .member(Head::new(b'X', "x"), &body)
        .file("a", b"")
        .end();
    assert_eq!(one(&tar).meta.uid, 9);
}

#[test]
fn device_numbers_may_come_as_records() {
    let tar = Archive::new()
        .pax(&[("SCHILY.devmajor", b"300"), ("SCHILY.devminor", b"300000")])
        .head(Head::new(b'4', "dev"))
        .end();
    assert_eq!(
        one(&tar).kind,
        Kind::Block(Device {
            major: 300,
            minor: 300_000
        })
    );
}

#[test]
fn gnu_long_names_and_links_of_any_length() {
    let name = "n/".repeat(5000) + "end";
    let link = "l".repeat(4000);
    let tar = Archive::new()
        .long(b'K', link.as_bytes())
        .long(b'L', name.as_bytes())
        .head(Head::new(b'2', "cut").magic(GNU).link("cut"))
        .file("next", b"")
        .end();
    let got = read(&tar);
    assert_eq!(got[0].path, name);
    assert_eq!(got[0].kind, Kind::Symlink(link.into_bytes()));
    assert_eq!(got[1].path, "next");
}

#[test]
fn a_pax_path_takes_precedence_over_a_gnu_long_name() {
    let tar = Archive::new()
        .pax(&[("path", b"pax")])
        .long(b'L', b"gnu")
        .file("header", b"")
        .end();
    assert_eq!(paths(&tar), ["pax"]);
}

#[test]
fn extended_headers_need_a_member() {
    let tar = Archive::new().file("a", b"").pax(&[("uid", b"1")]).end();
    assert_eq!(
        fails(&tar).to_string(),
        "test.tar: byte 512: extended header without a member after it"
    );
}
