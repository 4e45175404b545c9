//! Rules of extended attributes.

use super::finding::{Rule, Severity};
use super::walk::Walk;
use crate::read::{Inode, Space};
use std::collections::HashSet;
use tuff_format::xattr::{Body, Entry, LONG_PREFIX, filter_bit, prefix};

impl Walk<'_, '_> {
    /// Checks that the attribute area is filled exactly, names are unique and use a defined prefix, the
    /// filter is correct, and ACLs are well-formed.
    pub(super) fn check_xattrs(&mut self, inode: &Inode) {
        if !inode.has_xattrs() {
            return;
        }
        let shared = self.shared;
        let body = match self.image.xattr_body(inode) {
            Ok(body) => body,
            Err(e) => return shared.failed(Rule::XattrBody, &self.path(), &e),
        };
        let body = match Body::new(&body) {
            Ok(body) => body,
            Err(e) => return shared.error(Rule::XattrBody, self.place(inode), e),
        };
        let mut seen = Seen::default();
        for entry in body.entries() {
            match entry {
                Ok(entry) => self.check_xattr(&entry, inode, &mut seen),
                Err(e) => return shared.error(Rule::XattrBody, self.place(inode), e),
            }
        }
        for id in body.shared_ids() {
            let bytes = match self.image.shared_xattr(id) {
                Ok(bytes) => bytes,
                Err(e) => {
                    shared.failed(Rule::XattrBody, &self.place(inode), &e);
                    continue;
                }
            };
            let (space, pos) = self.image.shared_position(id);
            if space == Space::Image {
                self.marks.image.share(pos, pos + bytes.len() as u64);
            }
            match Entry::decode(&bytes) {
                Ok((entry, _)) => self.check_xattr(&entry, inode, &mut seen),
                Err(e) => shared.error(
                    Rule::XattrBody,
                    format_args!("{}: shared attribute {id}", self.place(inode)),
                    e,
                ),
            }
        }
        let sb = self.image.superblock();
        let hidden = body.filter & seen.bits;
        if sb.trusts_filters() && hidden != 0 {
            shared.error(
                Rule::XattrFilter,
                self.place(inode),
                format_args!(
                    "filter {:#010x} hides existing attributes, expected {:#010x}",
                    body.filter, !seen.bits
                ),
            );
        }
    }

    fn check_xattr(&mut self, entry: &Entry<'_>, inode: &Inode, seen: &mut Seen) {
        let shared = self.shared;
        if entry.index & LONG_PREFIX != 0 {
            self.marks.used.long_prefix = true;
        }
        let Some((base, infix, name)) = self.image.name_parts(entry) else {
            return shared.error(
                Rule::XattrName,
                self.place(inode),
                format_args!(
                    "long prefix {} is undefined, the table has {} entries",
                    entry.index & !LONG_PREFIX,
                    self.image.prefixes().len()
                ),
            );
        };
        let rest = [infix, name].concat();
        seen.bits |= filter_bit(base, &rest);
        let Some(prefix) = prefix(base) else {
            // Fingerprints may use index 0.
            if base != 0 {
                let what = format_args!("unknown name index {base}");
                shared.add(Severity::Warning, Rule::XattrName, self.place(inode), what);
            }
            return;
        };
        let full = [prefix, &rest].concat();
        let shown = String::from_utf8_lossy(&full).into_owned();
        let whole = matches!(base, 2 | 3);
        if whole != rest.is_empty() || rest.contains(&0) || full.len() > 255 {
            let what = format_args!("invalid attribute name {shown:?}");
            shared.error(Rule::XattrName, self.place(inode), what);
        }
        if let (true, Err(what)) = (whole, check_acl(entry.value)) {
            let place = format_args!("{}: {shown}", self.place(inode));
            shared.error(Rule::Acl, place, what);
        }
        if !seen.names.insert(full) {
            let what = format_args!("duplicate attribute {shown}");
            shared.error(Rule::XattrName, self.place(inode), what);
        }
    }
}

#[derive(Default)]
struct Seen {
    names: HashSet<Vec<u8>>,
    /// Filter bits that must be clear.
    bits: u32,
}

/// Checks an ACL like the kernel: version 2, then owner, users, group, groups, mask, other, in this order.
fn check_acl(value: &[u8]) -> Result<(), String> {
    let Some((version, entries)) = value.split_first_chunk::<4>() else {
        return Err(format!("{} bytes, expected at least 4", value.len()));
    };
    if u32::from_le_bytes(*version) != 2 {
        return Err(format!(
            "version {}, expected 2",
            u32::from_le_bytes(*version)
        ));
    }
    let (entries, rest) = entries.as_chunks::<8>();
    if !rest.is_empty() {
        return Err(format!(
            "{} bytes, expected 4 and a multiple of 8",
            value.len()
        ));
    }
    let mut last = 0;
    let mut named = false;
    for &[t0, t1, p0, p1, ..] in entries {
        let (tag, perm) = (u16::from_le_bytes([t0, t1]), u16::from_le_bytes([p0, p1]));
        // Tags are ascending powers of two; only named users (2) and groups (8) may repeat.
        let again = matches!(tag, 2 | 8) && tag == last;
        if !matches!(tag, 1 | 2 | 4 | 8 | 0x10 | 0x20) || tag <= last && !again {
            return Err(format!("tag {tag:#x} after tag {last:#x}"));
        }
        if perm > 7 {
            return Err(format!("permissions {perm:#x}, expected at most 7"));
        }
        named |= matches!(tag, 2 | 8);
        last = tag;
    }
    let has = |t: u16| entries.iter().any(|e| e[..2] == t.to_le_bytes());
    if !entries.is_empty() && !(has(1) && has(4) && has(0x20) && (!named || has(0x10))) {
        return Err("an owner, group, other or mask entry is missing".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::check_acl;

    fn acl(entries: &[(u16, u16)]) -> Vec<u8> {
        let mut out = vec![2, 0, 0, 0];
        for (tag, perm) in entries {
            out.extend_from_slice(&tag.to_le_bytes());
            out.extend_from_slice(&perm.to_le_bytes());
            out.extend_from_slice(&[255; 4]);
        }
        out
    }

    #[test]
    fn acls_are_taken_as_the_kernel_takes_them() {
        assert!(check_acl(&acl(&[(1, 7), (4, 5), (0x20, 0)])).is_ok());
        assert!(
            check_acl(&acl(&[
                (1, 7),
                (2, 5),
                (2, 4),
                (4, 5),
                (0x10, 7),
                (0x20, 0)
            ]))
            .is_ok()
        );
        assert!(
            check_acl(&acl(&[(1, 7), (2, 5), (4, 5), (0x20, 0)])).is_err(),
            "no mask"
        );
        assert!(
            check_acl(&acl(&[(4, 7), (1, 5), (0x20, 0)])).is_err(),
            "order"
        );
        assert!(
            check_acl(&acl(&[(1, 8), (4, 5), (0x20, 0)])).is_err(),
            "permissions"
        );
        assert!(check_acl(&[1, 0, 0, 0]).is_err(), "version");
        assert!(check_acl(&[2, 0, 0]).is_err(), "length");
    }
}
