//! Extended attributes: bodies after inodes, shared entries, long name prefixes and name filters.
//!
//! ```text
//! body    u32 filter | u8 shared count | 7 reserved | u32 shared id ... | entry ...
//! entry   u8 name length | u8 name index | u16 value size | name | value | pad to 4
//! prefix  u16 size | u8 base index | infix (size - 1) | pad to 4
//! ```
//! Source: `docs/reference/format/xattr.md`.

use crate::wire::{bytes, u16_at, u32_at};
use crate::{Error, Result};
use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

/// Length of the header of an xattr body. Unit: bytes.
pub const HEADER_LEN: usize = 12;
/// Longest stored name, and longest full name that Linux takes. Unit: bytes.
pub const NAME_MAX: usize = 255;
/// Bit of a name index that selects a long prefix.
pub const LONG_PREFIX: u8 = 0x80;

/// Name prefixes by name index.
const PREFIXES: [(u8, &[u8]); 6] = [
    (2, b"system.posix_acl_access"),
    (3, b"system.posix_acl_default"),
    (1, b"user."),
    (4, b"trusted."),
    (5, b"lustre."),
    (6, b"security."),
];

/// Returns the name prefix of `index`. `None` if xattrs with it are not visible.
pub fn prefix(index: u8) -> Option<&'static [u8]> {
    PREFIXES.iter().find(|(i, _)| *i == index).map(|(_, p)| *p)
}

/// Splits a full name into name index and stored name. `None` for a namespace that EROFS does not support.
pub fn split(name: &[u8]) -> Option<(u8, &[u8])> {
    let (index, rest) = PREFIXES
        .iter()
        .find_map(|(i, p)| Some((*i, name.strip_prefix(*p)?)))?;
    // The prefixes of ACLs are full names. All others need a suffix.
    let whole = matches!(index, 2 | 3);
    (whole == rest.is_empty()).then_some((index, rest))
}

/// Entry of an xattr, as stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Name index: a namespace, or [`LONG_PREFIX`] and the number of a long prefix.
    pub index: u8,
    /// Name without its prefix.
    pub name: &'a [u8],
    /// Value of the xattr.
    pub value: &'a [u8],
}

impl<'a> Entry<'a> {
    /// Decodes the entry at the start of `src`. Also returns its padded length.
    pub fn decode(src: &'a [u8]) -> Result<(Self, usize)> {
        let &[name_len, index, v0, v1] = bytes(src, 0, 4, "attribute entry")? else {
            return Err(Error::corrupt("attribute entry"));
        };
        let name_len = usize::from(name_len);
        let value_len = usize::from(u16::from_le_bytes([v0, v1]));
        let name = bytes(src, 4, name_len, "attribute name")?;
        let value = bytes(src, 4 + name_len, value_len, "attribute value")?;
        Ok((
            Self { index, name, value },
            (4 + name_len + value_len).next_multiple_of(4),
        ))
    }

    /// Appends the padded entry to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        debug_assert!(
            self.name.len() <= NAME_MAX
                && self.value.len() <= 0xFFFF
                && out.len().is_multiple_of(4)
        );
        let [v0, v1, ..] = self.value.len().to_le_bytes();
        out.extend_from_slice(&[self.name.len() as u8, self.index, v0, v1]);
        out.extend_from_slice(self.name);
        out.extend_from_slice(self.value);
        out.resize(out.len().next_multiple_of(4), 0);
    }

    /// Padded length of the entry. Unit: bytes.
    pub fn encoded_len(&self) -> usize {
        (4 + self.name.len() + self.value.len()).next_multiple_of(4)
    }

    /// True for the all-zero entry, which serves as padding.
    pub fn is_padding(&self) -> bool {
        self.index == 0 && self.name.is_empty() && self.value.is_empty()
    }
}

/// Xattr body of an inode, with a checked header.
#[derive(Clone, Copy)]
pub struct Body<'a> {
    /// Bloom filter of names: a set bit proves that a name is absent.
    pub filter: u32,
    shared: &'a [u8],
    entries: &'a [u8],
}

impl<'a> Body<'a> {
    /// Checks the header and splits the body.
    pub fn new(src: &'a [u8]) -> Result<Self> {
        if src.len() <= HEADER_LEN {
            return Err(Error::bad(
                "attribute body length",
                src.len() as u64,
                "more than its 12-byte header",
            ));
        }
        let filter = u32_at(src, 0, "attribute body")?;
        let count = usize::from(
            bytes(src, 4, 1, "attribute body")?
                .first()
                .copied()
                .unwrap_or(0),
        );
        let shared = bytes(src, HEADER_LEN, 4 * count, "attribute body: shared ids")?;
        let entries = src.get(HEADER_LEN + 4 * count..).unwrap_or(&[]);
        Ok(Self {
            filter,
            shared,
            entries,
        })
    }

    /// Ids of shared entries: their positions, in units of 4 bytes.
    pub fn shared_ids(&self) -> impl Iterator<Item = u32> + 'a {
        self.shared
            .chunks_exact(4)
            .map(|c| u32_at(c, 0, "").unwrap_or(0))
    }

    /// Iterates over the entries in the body, except padding. Ends after the first error.
    pub fn entries(&self) -> impl Iterator<Item = Result<Entry<'a>>> + 'a {
        let mut rest = self.entries;
        core::iter::from_fn(move || {
            loop {
                if rest.is_empty() {
                    return None;
                }
                match Entry::decode(rest) {
                    Ok((entry, len)) => match rest.get(len..) {
                        Some(next) => {
                            rest = next;
                            if !entry.is_padding() {
                                return Some(Ok(entry));
                            }
                        }
                        None => {
                            rest = &[];
                            return Some(Err(Error::corrupt(
                                "attribute entry reaches past the body",
                            )));
                        }
                    },
                    Err(e) => {
                        rest = &[];
                        return Some(Err(e));
                    }
                }
            }
        })
    }
}

/// Appends an xattr body to `out`. Writes nothing if there are no xattrs.
pub fn encode_body(filter: u32, shared: &[u32], entries: &[Entry<'_>], out: &mut Vec<u8>) {
    if shared.is_empty() && entries.is_empty() {
        return;
    }
    debug_assert!(shared.len() <= 255);
    out.extend_from_slice(&filter.to_le_bytes());
    out.extend_from_slice(&[shared.len() as u8, 0, 0, 0, 0, 0, 0, 0]);
    for id in shared {
        out.extend_from_slice(&id.to_le_bytes());
    }
    for entry in entries {
        entry.encode(out);
    }
}

/// Computes `i_xattr_icount` for a body of `len` bytes. `None` if the body is too long for an inode.
pub fn icount(len: usize) -> Option<u16> {
    match len {
        0 => Some(0),
        _ => u16::try_from((len - HEADER_LEN) / 4 + 1).ok(),
    }
}

/// Computes the filter bit of a name. `name` follows the base prefix and includes the infix.
pub fn filter_bit(base_index: u8, name: &[u8]) -> u32 {
    const SEED: u32 = 0x25BB_E08F;
    1 << (xxhash_rust::xxh32::xxh32(name, SEED + u32::from(base_index)) & 31)
}

/// Long name prefix. `trusted.overlay.` has the base index 4 and the infix `overlay.`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LongPrefix {
    /// Name index of the namespace.
    pub base: u8,
    /// Rest of the prefix, after the namespace.
    pub infix: Vec<u8>,
}

impl LongPrefix {
    /// Decodes the record at the start of `src`. Also returns its length without padding.
    pub fn decode(src: &[u8]) -> Result<(Self, usize)> {
        let size = usize::from(u16_at(src, 0, "attribute prefix record")?);
        if !(1..=256).contains(&size) {
            return Err(Error::bad(
                "attribute prefix record size",
                size as u64,
                "1 to 256",
            ));
        }
        match bytes(src, 2, size, "attribute prefix record")? {
            [base, infix @ ..] => Ok((
                Self {
                    base: *base,
                    infix: infix.to_vec(),
                },
                2 + size,
            )),
            [] => Err(Error::corrupt("attribute prefix record")),
        }
    }

    /// Appends the padded record to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        debug_assert!(self.infix.len() <= 255);
        out.extend_from_slice(&(self.infix.len() as u16 + 1).to_le_bytes());
        out.push(self.base);
        out.extend_from_slice(&self.infix);
        out.resize(out.len().next_multiple_of(4), 0);
    }
}

/// Checks an ACL like the kernel: version 2, then owner, users, group, groups, mask, other, in this order.
///
/// # Errors
///
/// Describes the first deviation.
pub fn check_acl(value: &[u8]) -> core::result::Result<(), String> {
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
    use super::*;

    #[test]
    fn filter_bits_equal_the_documented_ones() {
        for (base, name, bit) in [
            (1, &b"foo"[..], 12),
            (1, b"a", 21),
            (1, b"a-rather-long-attribute-name", 7),
            (2, b"", 30),
            (3, b"", 21),
            (4, b"overlay.opaque", 20),
            (6, b"capability", 29),
            (6, b"selinux", 11),
        ] {
            assert_eq!(filter_bit(base, name), 1 << bit);
        }
    }

    #[test]
    fn names_split_at_their_name_space() {
        assert_eq!(split(b"user.a"), Some((1, &b"a"[..])));
        assert_eq!(split(b"system.posix_acl_access"), Some((2, &b""[..])));
        assert_eq!(split(b"system.other"), None);
        assert_eq!(split(b"user."), None);
        assert_eq!(split(b"security.capability"), Some((6, &b"capability"[..])));
    }

    #[test]
    fn bodies_survive_a_round_trip() {
        let entries = [
            Entry {
                index: 1,
                name: b"a",
                value: b"b",
            },
            Entry {
                index: 6,
                name: b"selinux",
                value: b"",
            },
            Entry {
                index: 0x81,
                name: b"opaque",
                value: b"y",
            },
        ];
        let mut bytes = Vec::new();
        encode_body(0xFFDF_FFFF, &[7, 9], &entries, &mut bytes);
        assert_eq!(
            icount(bytes.len()),
            Some(((bytes.len() - 12) / 4 + 1) as u16)
        );
        let body = Body::new(&bytes).unwrap();
        assert_eq!(body.filter, 0xFFDF_FFFF);
        assert_eq!(body.shared_ids().collect::<Vec<_>>(), [7, 9]);
        assert_eq!(body.entries().collect::<Result<Vec<_>>>().unwrap(), entries);
        for n in 0..bytes.len() {
            if let Ok(body) = Body::new(&bytes[..n]) {
                let _ = body.entries().count();
            }
        }
    }

    #[test]
    fn prefix_records_are_as_documented() {
        let mut out = Vec::new();
        LongPrefix {
            base: 1,
            infix: b"common.".to_vec(),
        }
        .encode(&mut out);
        LongPrefix {
            base: 4,
            infix: b"overlay.".to_vec(),
        }
        .encode(&mut out);
        assert_eq!(out, *b"\x08\x00\x01common.\x00\x00\x09\x00\x04overlay.\x00");
    }

    fn acl(entries: &[(u16, u16)]) -> Vec<u8> {
        let mut out = alloc::vec![2, 0, 0, 0];
        for (tag, perm) in entries {
            out.extend_from_slice(&tag.to_le_bytes());
            out.extend_from_slice(&perm.to_le_bytes());
            out.extend_from_slice(&[255; 4]);
        }
        out
    }

    #[test]
    fn acls_are_taken_as_the_kernel_takes_them() {
        let good = [
            acl(&[(1, 7), (4, 5), (0x20, 0)]),
            acl(&[(1, 7), (2, 5), (2, 4), (4, 5), (0x10, 7), (0x20, 0)]),
        ];
        for value in good {
            assert_eq!(check_acl(&value), Ok(()));
        }
        for (value, why) in [
            (acl(&[(1, 7), (2, 5), (4, 5), (0x20, 0)]), "no mask"),
            (acl(&[(4, 7), (1, 5), (0x20, 0)]), "order"),
            (acl(&[(1, 8), (4, 5), (0x20, 0)]), "permissions"),
            (alloc::vec![1, 0, 0, 0], "version"),
            (alloc::vec![2, 0, 0], "length"),
        ] {
            assert!(check_acl(&value).is_err(), "{why}");
        }
    }
}
