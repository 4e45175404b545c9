//! ACLs as text, from `SCHILY.acl.*` records, and their conversion to an extended attribute.
//!
//! ```text
//! user::rw-,user:77:rwx,group::r--,mask::rwx,other::r--
//!        u32 version (2) | u16 tag, u16 permissions, u32 id | ...
//! ```
//!
//! Entries end with a comma or a newline; `#` starts a comment. An entry for a name has its number
//! after the permissions, if the writer knew it: `user:name:rw-:77`. The group bits of the mode of
//! a file with an ACL show the mask.
//!
//! Sources: star(5) for the records, acl(5) for the text form.

use super::super::error::{Quoted, SourceError};
use super::super::text::decimal;
use std::collections::BTreeMap;

/// Attribute with the access ACL.
pub(super) const ACCESS: &[u8] = b"system.posix_acl_access";
/// Attribute with the default ACL, which new entries of a directory inherit.
pub(super) const DEFAULT: &[u8] = b"system.posix_acl_default";

/// ID of entries that refer to no user or group.
const NO_ID: u32 = u32::MAX;

mod tag {
    pub(super) const USER_OBJ: u16 = 1;
    pub(super) const USER: u16 = 2;
    pub(super) const GROUP_OBJ: u16 = 4;
    pub(super) const GROUP: u16 = 8;
    pub(super) const MASK: u16 = 0x10;
    pub(super) const OTHER: u16 = 0x20;
}

/// Access control list in parsed form.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Acl {
    /// Permissions by tag and ID, in the order in which they are stored.
    entries: BTreeMap<(u16, u32), u16>,
    /// Names without a number, which are left out.
    pub(super) names: Vec<Vec<u8>>,
}

impl Acl {
    /// Parses the text form. `key` names the record in messages.
    pub(super) fn parse(words: &[u8], key: &str) -> Result<Self, SourceError> {
        let mut acl = Self {
            entries: BTreeMap::new(),
            names: Vec::new(),
        };
        for entry in words.split(|b| matches!(b, b',' | b'\n')) {
            let end = entry.iter().position(|b| *b == b'#');
            let entry = entry[..end.unwrap_or(entry.len())].trim_ascii();
            if !entry.is_empty() {
                acl.take(entry).ok_or_else(|| {
                    SourceError::corrupt(format!(
                        "{key}: expected an entry like user:77:rw- that is there once, found {}",
                        Quoted(entry)
                    ))
                })?;
            }
        }
        let has = |tag| acl.entries.contains_key(&(tag, NO_ID));
        if !(has(tag::USER_OBJ) && has(tag::GROUP_OBJ) && has(tag::OTHER)) {
            return Err(SourceError::corrupt(format!(
                "{key}: expected entries for user, group and other, found {}",
                Quoted(words)
            )));
        }
        acl.add_mask();
        Ok(acl)
    }

    fn take(&mut self, entry: &[u8]) -> Option<()> {
        let fields: Vec<&[u8]> = entry.split(|b| *b == b':').collect();
        let (kind, name, permissions, number) = match fields[..] {
            [kind, permissions] => (kind, &b""[..], permissions, None),
            [kind, name, permissions] => (kind, name, permissions, None),
            [kind, name, permissions, number] => (kind, name, permissions, Some(number)),
            _ => return None,
        };
        let (object, named) = match kind {
            b"user" | b"u" => (tag::USER_OBJ, Some(tag::USER)),
            b"group" | b"g" => (tag::GROUP_OBJ, Some(tag::GROUP)),
            b"mask" | b"m" => (tag::MASK, None),
            b"other" | b"o" => (tag::OTHER, None),
            _ => return None,
        };
        let id = |text| u32::try_from(decimal(text)?).ok().filter(|id| *id != NO_ID);
        let key = match (name, number) {
            (b"", _) => (object, NO_ID),
            (_, Some(number)) => (named?, id(number)?),
            (name, None) => match id(name) {
                Some(id) => (named?, id),
                None => {
                    parse_permissions(permissions)?;
                    named?;
                    self.names.push(name.to_vec());
                    return Some(());
                }
            },
        };
        let old = self.entries.insert(key, parse_permissions(permissions)?);
        old.is_none().then_some(())
    }

    /// Adds the mask that a list with named entries requires: the union of the permissions in the
    /// group class.
    fn add_mask(&mut self) {
        let class = |tag| matches!(tag, tag::USER | tag::GROUP_OBJ | tag::GROUP);
        let is_minimal = self.is_minimal();
        let entries = self.entries.iter().filter(|((tag, _), _)| class(*tag));
        let all = entries.fold(0, |all, (_, permissions)| all | permissions);
        if !is_minimal {
            self.entries.entry((tag::MASK, NO_ID)).or_insert(all);
        }
    }

    /// True for a list that is equivalent to permission bits.
    pub(super) fn is_minimal(&self) -> bool {
        self.entries.len() == 3
    }

    /// Permission bits that the kernel shows for this list. The group bits are those of the mask.
    pub(super) fn mode_bits(&self) -> u16 {
        let of = |tag| self.entries.get(&(tag, NO_ID)).copied();
        let group = of(tag::MASK).or(of(tag::GROUP_OBJ)).unwrap_or(0);
        of(tag::USER_OBJ).unwrap_or(0) << 6 | group << 3 | of(tag::OTHER).unwrap_or(0)
    }

    /// Value of the extended attribute.
    pub(super) fn value(&self) -> Vec<u8> {
        let mut out = 2u32.to_le_bytes().to_vec();
        for ((tag, id), permissions) in &self.entries {
            out.extend_from_slice(&tag.to_le_bytes());
            out.extend_from_slice(&permissions.to_le_bytes());
            out.extend_from_slice(&id.to_le_bytes());
        }
        out
    }
}

fn parse_permissions(text: &[u8]) -> Option<u16> {
    let [r, w, x] = *text else { return None };
    let bit = |found: u8, letter: u8, bit: u16| match found {
        b'-' => Some(0),
        found => (found == letter).then_some(bit),
    };
    Some(bit(r, b'r', 4)? | bit(w, b'w', 2)? | bit(x, b'x', 1)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &str) -> Acl {
        Acl::parse(words.as_bytes(), "SCHILY.acl.access").unwrap()
    }

    #[test]
    fn text_becomes_entries_in_the_order_of_tag_and_id() {
        let acl = parse("other::r--,mask::rw-,group::r--,user:77:rw-,user:5:--x,user::rwx");
        let entries: Vec<_> = acl.entries.iter().map(|((t, i), p)| (*t, *i, *p)).collect();
        assert_eq!(
            entries,
            [
                (1, NO_ID, 7),
                (2, 5, 1),
                (2, 77, 6),
                (4, NO_ID, 4),
                (16, NO_ID, 6),
                (32, NO_ID, 4)
            ]
        );
        assert_eq!(acl.mode_bits(), 0o764);
        assert_eq!(
            acl.value()[..12],
            [2, 0, 0, 0, 1, 0, 7, 0, 255, 255, 255, 255]
        );
        assert_eq!(acl.value().len(), 4 + 8 * 6);
    }

    #[test]
    fn newlines_comments_abbreviations_and_trailing_numbers_are_accepted() {
        let acl = parse("u::rw-\nuser:tux:rw-:77\t#effective:r--\ng::r--\nmask:r--\nother:---\n\n");
        assert_eq!(
            acl,
            parse("user::rw-,user:77:rw-,group::r--,mask::r--,other::---")
        );
    }

    #[test]
    fn names_without_a_number_are_left_out_and_listed() {
        let acl = parse("user::rw-,user:tux:rwx,group::r--,group:7:-w-,other::---");
        assert_eq!(acl.names, [b"tux"]);
        // A missing mask is the union of the remaining entries.
        assert_eq!(acl.mode_bits(), 0o660);
        let minimal = parse("user::rw-,group::r--,other::r--");
        assert!(minimal.is_minimal());
        assert_eq!(minimal.mode_bits(), 0o644);
    }

    #[test]
    fn invalid_lists_are_rejected() {
        for words in [
            "user::rw-,group::r--",
            "user::rw-,group::r--,other::r--,other::r--",
            "user::rw-,group::r--,other::r-",
            "user::rw-,group::r--,other::rwz",
            "user::rw-,group::r--,other:5:r--",
            "user::rw-,group::r--,other::r--,user:4294967295:r--:4294967295",
            "user::rw-,group::r--,other::r--,mask:tux:r--",
            "user::rw-,group::r--,other::r--,clique:5:r--",
            "rw-",
        ] {
            assert!(Acl::parse(words.as_bytes(), "x").is_err(), "{words}");
        }
    }
}
