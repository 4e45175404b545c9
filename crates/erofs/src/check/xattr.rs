//! Rules of extended attributes.

use super::finding::{Rule, Severity};
use super::walk::Walk;
use crate::Place;
use crate::read::{Inode, Space};
use std::collections::HashSet;
use tuff_format::xattr::{Body, Entry, LONG_PREFIX, NAME_MAX, check_acl, filter_bit, prefix};

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
            Err(e) => return shared.failed(Rule::XattrBody, Place::path(self.path()), &e),
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
                    shared.failed(Rule::XattrBody, self.place(inode), &e);
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
        if whole != rest.is_empty() || rest.contains(&0) || full.len() > NAME_MAX {
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
