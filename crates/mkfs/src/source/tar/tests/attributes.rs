//! Extended attributes and ACLs, as archivers write them.

use super::super::TarReader;
use super::archive::{Archive, Head};
use super::{fails, one};

/// A defect of mkfs.erofs's reader: one xattr with an empty value removed all others of the inode.
#[test]
fn xattrs_are_binary_safe_and_may_be_empty() {
    let value: Vec<u8> = (0..=255).collect();
    let tar = Archive::new()
        .pax(&[
            ("SCHILY.xattr.user.z", &value),
            ("SCHILY.xattr.user.empty", b""),
            ("SCHILY.xattr.user.newline\nname", b"a\nb"),
            ("SCHILY.xattr.user.equals%3Dpercent%25other%41", b"="),
            ("SCHILY.xattr.security.capability", b"\x01\0\0\x02"),
        ])
        .file("a", b"x")
        .end();
    let got = one(&tar);
    assert_eq!(
        got.xattrs,
        [
            ("security.capability".into(), b"\x01\0\0\x02".to_vec()),
            ("user.empty".into(), vec![]),
            ("user.equals=percent%other%41".into(), b"=".to_vec()),
            ("user.newline\nname".into(), b"a\nb".to_vec()),
            ("user.z".into(), value),
        ]
    );
}

/// The group bits of the header are the mask. Without the list the group would get its permissions.
#[test]
fn text_acls_become_attributes_and_permission_bits() {
    let acl = |tar: &[u8]| {
        let got = one(tar);
        let mut names: Vec<_> = got.xattrs.iter().map(|(name, _)| name.clone()).collect();
        names.insert(0, format!("{:o}", got.meta.mode));
        names
    };
    let words = &b"user::rw-,user:77:rw-,group::r--,mask::rw-,other::r--"[..];
    let minimal = &b"user::rw-\ngroup::r--\nother::r--\n"[..];
    let file = |records: &[(&str, &[u8])]| {
        let head = Head::new(b'0', "f").mode(0o4660);
        Archive::new().pax(records).head(head).end()
    };
    let dir = |records: &[(&str, &[u8])]| {
        let head = Head::new(b'5', "d").mode(0o755);
        Archive::new().pax(records).head(head).end()
    };
    let (access, default) = ("system.posix_acl_access", "system.posix_acl_default");
    let tar = file(&[("SCHILY.acl.access", words), ("SCHILY.acl.default", words)]);
    assert_eq!(acl(&tar), ["4664", access]);
    let value = "02000000 0100 0600 ffffffff 0200 0600 4d000000 0400 0400 ffffffff \
                 1000 0600 ffffffff 2000 0400 ffffffff";
    let value: Vec<u8> = value
        .split_whitespace()
        .flat_map(|hex| hex.as_bytes().chunks(2))
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect();
    assert_eq!(one(&tar).xattrs[0].1, value);
    // An ACL that is equivalent to the mode is not stored.
    assert_eq!(acl(&file(&[("SCHILY.acl.access", minimal)])), ["4644"]);
    let tar = dir(&[("SCHILY.acl.default", minimal)]);
    assert_eq!(acl(&tar), ["755", default]);
    // An attribute takes precedence over text.
    let key = "SCHILY.xattr.system.posix_acl_access";
    let tar = file(&[("SCHILY.acl.access", words), (key, b"attribute")]);
    assert_eq!(acl(&tar), ["4660", access]);
    assert_eq!(one(&tar).xattrs[0].1, b"attribute");
    assert_eq!(
        fails(&file(&[("SCHILY.acl.access", b"user::rw-,rubbish")])).to_string(),
        "test.tar: byte 1024: member \"f\": SCHILY.acl.access: \
         expected an entry like user:77:rw- that is there once, found \"rubbish\""
    );
}

#[test]
fn unknown_names_in_acls_are_reported() {
    let words = |name: &str| format!("user::rw-,{name},group::r--,mask::rw-,other::r--");
    let tar = Archive::new()
        .pax(&[("SCHILY.acl.access", words("user:tux:rw-:77").as_bytes())])
        .file("known", b"")
        .pax(&[("SCHILY.acl.access", words("group:staff:rw-").as_bytes())])
        .file("unknown", b"")
        .end();
    let mut reader = TarReader::new("test.tar", &tar[..]);
    let known = reader.next_entry().unwrap().unwrap();
    assert_eq!(known.xattrs[0].1.len(), 4 + 5 * 8);
    assert_eq!(reader.warnings(), [""; 0]);
    let unknown = reader.next_entry().unwrap().unwrap();
    assert_eq!(unknown.xattrs[0].1.len(), 4 + 4 * 8);
    let warning = reader.warnings().remove(0);
    assert!(
        warning.starts_with("test.tar: \"unknown\": ACL entries for names"),
        "{warning}"
    );
}

#[test]
fn libarchive_xattrs_are_base64_under_encoded_names() {
    let tar = Archive::new()
        .pax(&[
            ("LIBARCHIVE.xattr.user.a%20b", b"AAEC/w"),
            ("LIBARCHIVE.xattr.user.c", b"eA=="),
            ("SCHILY.xattr.user.c", b"x"),
        ])
        .file("a", b"")
        .end();
    assert_eq!(
        one(&tar).xattrs,
        [
            ("user.a b".into(), vec![0, 1, 2, 0xff]),
            ("user.c".into(), b"x".to_vec())
        ]
    );
    let tar = Archive::new()
        .pax(&[("LIBARCHIVE.xattr.user.c", b"!")])
        .file("a", b"")
        .end();
    assert!(fails(&tar).to_string().ends_with("is not base64"));
}
