//! POSIX access control lists, as Linux stores them in extended attributes.
//!
//! ```text
//!  version 4 (2) │ entry … : tag 2 │ permissions 2 │ id 4        ascending by tag, then id
//! ```
//!
//! The kernel enforces the lists. This module keeps a list and the permission bits of its inode consistent, and lets
//! new inodes inherit the default list of their directory. The rules are those of POSIX 1003.1e draft 17, as in
//! acl(5).

use crate::disk::xattr::Xattrs;
use crate::error::{Errno, Result};

/// Attribute of the access list.
pub const ACCESS: &[u8] = b"system.posix_acl_access";
/// Attribute of the default list, which new inodes in a directory inherit.
pub const DEFAULT: &[u8] = b"system.posix_acl_default";

const VERSION: u32 = 2;
const ENTRY_LEN: usize = 8;
/// ID of entries without a user or group.
const NO_ID: u32 = u32::MAX;

mod tag {
    pub(super) const USER_OBJ: u16 = 1;
    pub(super) const USER: u16 = 2;
    pub(super) const GROUP_OBJ: u16 = 4;
    pub(super) const GROUP: u16 = 8;
    pub(super) const MASK: u16 = 0x10;
    pub(super) const OTHER: u16 = 0x20;
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Entry {
    tag: u16,
    permissions: u16,
    id: u32,
}

/// Valid access control list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Acl(Vec<Entry>);

impl Acl {
    /// Decodes and verifies a list. `Invalid` if it is not valid.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        let (version, rest) = bytes.split_first_chunk().ok_or(Errno::Invalid)?;
        if u32::from_le_bytes(*version) != VERSION {
            return Err(Errno::NotSupported.into());
        }
        let (entries, []) = rest.as_chunks::<ENTRY_LEN>() else {
            return Err(Errno::Invalid.into());
        };
        let entries: Vec<Entry> = entries
            .iter()
            .map(|e| Entry {
                tag: u16::from_le_bytes([e[0], e[1]]),
                permissions: u16::from_le_bytes([e[2], e[3]]),
                id: u32::from_le_bytes([e[4], e[5], e[6], e[7]]),
            })
            .collect();
        let count = |tag| entries.iter().filter(|e| e.tag == tag).count();
        let named = count(tag::USER) + count(tag::GROUP);
        let known = [
            tag::USER_OBJ,
            tag::USER,
            tag::GROUP_OBJ,
            tag::GROUP,
            tag::MASK,
            tag::OTHER,
        ];
        let sound = entries
            .iter()
            .all(|e| known.contains(&e.tag) && e.permissions <= 7)
            && entries.windows(2).all(|pair| pair[0].tag <= pair[1].tag)
            && count(tag::USER_OBJ) == 1
            && count(tag::GROUP_OBJ) == 1
            && count(tag::OTHER) == 1
            && count(tag::MASK) <= 1
            && (named == 0 || count(tag::MASK) == 1);
        if sound {
            Ok(Self(entries))
        } else {
            Err(Errno::Invalid.into())
        }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = VERSION.to_le_bytes().to_vec();
        for e in &self.0 {
            bytes.extend_from_slice(&e.tag.to_le_bytes());
            bytes.extend_from_slice(&e.permissions.to_le_bytes());
            let named = matches!(e.tag, tag::USER | tag::GROUP);
            bytes.extend_from_slice(&(if named { e.id } else { NO_ID }).to_le_bytes());
        }
        bytes
    }

    fn entry(&mut self, tag: u16) -> Option<&mut Entry> {
        self.0.iter_mut().find(|e| e.tag == tag)
    }

    /// Returns whether permission bits express the whole list.
    fn is_mode(&self) -> bool {
        self.0.len() == 3
    }

    /// Calls `change` for the entries that correspond to permission bits: owner, mask or group, others.
    fn three(&mut self, mut change: impl FnMut(&mut u16, u32)) {
        let group = if self.0.iter().any(|e| e.tag == tag::MASK) {
            tag::MASK
        } else {
            tag::GROUP_OBJ
        };
        for (tag, shift) in [(tag::USER_OBJ, 6), (group, 3), (tag::OTHER, 0)] {
            if let Some(entry) = self.entry(tag) {
                change(&mut entry.permissions, shift);
            }
        }
    }

    /// Permission bits that correspond to the list.
    fn bits(&mut self) -> u32 {
        let mut bits = 0;
        self.three(|permissions, shift| bits |= u32::from(*permissions) << shift);
        bits
    }

    /// Changes the list to match permission bits.
    fn set_bits(&mut self, mode: u32) {
        self.three(|permissions, shift| *permissions = (mode >> shift & 7) as u16);
    }
}

/// Stores a list in attributes. Returns the corresponding permission bits if it is an access list.
pub(crate) fn set(
    xattrs: &mut Xattrs,
    name: &[u8],
    value: &[u8],
    is_dir: bool,
) -> Result<Option<u32>> {
    let mut acl = Acl::decode(value)?;
    if name == DEFAULT {
        if !is_dir {
            return Err(Errno::NotPermitted.into());
        }
        xattrs.insert(name.to_vec(), acl.encode());
        return Ok(None);
    }
    if acl.is_mode() {
        xattrs.remove(name);
    } else {
        xattrs.insert(name.to_vec(), acl.encode());
    }
    Ok(Some(acl.bits()))
}

/// Changes the access list in attributes to match new permission bits. Returns false if there is none.
pub(crate) fn chmod(xattrs: &mut Xattrs, mode: u32) -> Result<bool> {
    let Some(value) = xattrs.get_mut(ACCESS) else {
        return Ok(false);
    };
    let mut acl = Acl::decode(value)?;
    acl.set_bits(mode);
    *value = acl.encode();
    Ok(true)
}

/// Attributes and permission bits of a new inode in a directory with these attributes. `None` if nothing is
/// inherited.
pub(crate) fn inherit(
    directory: &Xattrs,
    mode: u32,
    is_dir: bool,
) -> Result<Option<(Xattrs, u32)>> {
    let Some(value) = directory.get(DEFAULT) else {
        return Ok(None);
    };
    let mut acl = Acl::decode(value)?;
    acl.three(|permissions, shift| *permissions &= (mode >> shift & 7) as u16);
    let bits = acl.bits();
    let mut xattrs = Xattrs::new();
    if !acl.is_mode() {
        xattrs.insert(ACCESS.to_vec(), acl.encode());
    }
    if is_dir {
        xattrs.insert(DEFAULT.to_vec(), value.clone());
    }
    Ok(Some((xattrs, mode & !0o777 | bits)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        let entries = entries.iter().map(|&(tag, permissions, id)| Entry {
            tag,
            permissions,
            id,
        });
        Acl(entries.collect()).encode()
    }

    fn named() -> Vec<u8> {
        list(&[(1, 7, 0), (2, 6, 1000), (4, 5, 0), (16, 7, 0), (32, 4, 0)])
    }

    #[test]
    fn invalid_lists_are_rejected() {
        assert!(Acl::decode(&named()).is_ok());
        for cut in 0..named().len() {
            assert!(Acl::decode(&named()[..cut]).is_err(), "cut to {cut}");
        }
        for bad in [
            &[(1, 7, 0), (4, 7, 0)][..],
            &[(1, 7, 0), (2, 7, 5), (4, 7, 0), (32, 7, 0)],
            &[(1, 8, 0), (4, 7, 0), (32, 7, 0)],
            &[(4, 7, 0), (1, 7, 0), (32, 7, 0)],
            &[(1, 7, 0), (1, 7, 0), (4, 7, 0), (32, 7, 0)],
            &[(1, 7, 0), (3, 7, 0), (4, 7, 0), (32, 7, 0)],
        ] {
            assert!(Acl::decode(&list(bad)).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_list_and_the_permission_bits_stay_consistent() {
        let mut xattrs = Xattrs::new();
        assert_eq!(
            set(&mut xattrs, ACCESS, &named(), false).unwrap(),
            Some(0o774)
        );
        assert!(chmod(&mut xattrs, 0o640).unwrap());
        let want = list(&[(1, 6, 0), (2, 6, 1000), (4, 5, 0), (16, 4, 0), (32, 0, 0)]);
        assert_eq!(xattrs[ACCESS], want);
        // A list that permission bits express completely is not stored.
        let plain = list(&[(1, 6, 0), (4, 4, 0), (32, 0, 0)]);
        assert_eq!(
            set(&mut xattrs, ACCESS, &plain, false).unwrap(),
            Some(0o640)
        );
        assert!(xattrs.is_empty() && !chmod(&mut xattrs, 0).unwrap());
        assert!(set(&mut xattrs, DEFAULT, &plain, false).is_err());
    }

    #[test]
    fn new_inodes_inherit_the_default_list() {
        let mut directory = Xattrs::new();
        assert_eq!(inherit(&directory, 0o666, false).unwrap(), None);
        set(&mut directory, DEFAULT, &named(), true).unwrap();
        let (file, mode) = inherit(&directory, 0o100_640, false).unwrap().unwrap();
        assert_eq!((mode, file.len()), (0o100_640, 1));
        let want = list(&[(1, 6, 0), (2, 6, 1000), (4, 5, 0), (16, 4, 0), (32, 0, 0)]);
        assert_eq!(file[ACCESS], want);
        let (dir, mode) = inherit(&directory, 0o042_777, true).unwrap().unwrap();
        assert_eq!((mode, &dir[DEFAULT]), (0o042_774, &named()));
    }
}
