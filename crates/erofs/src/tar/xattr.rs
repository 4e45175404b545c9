//! Extended attributes as PAX records.

use super::acl;
use super::header::record;

/// Appends an xattr as a SCHILY.xattr record, and an ACL additionally in its text form.
pub fn records(name: &[u8], value: &[u8], out: &mut Vec<u8>) {
    let acl = match name {
        b"system.posix_acl_access" => Some(&b"SCHILY.acl.access"[..]),
        b"system.posix_acl_default" => Some(&b"SCHILY.acl.default"[..]),
        _ => None,
    };
    if let (Some(key), Some(words)) = (acl, acl::words(value)) {
        record(key, words.as_bytes(), out);
    }
    let mut key = b"SCHILY.xattr.".to_vec();
    for b in name {
        // A key ends at its first equals sign, so it is escaped in the same way as by GNU tar.
        match b {
            b'=' => key.extend_from_slice(b"%3D"),
            b'%' => key.extend_from_slice(b"%25"),
            b => key.push(*b),
        }
    }
    record(&key, value, out);
}
