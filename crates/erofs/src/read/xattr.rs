//! Extended attributes, with long prefixes resolved.

use super::fetch::{Bytes, Space};
use super::image::Image;
use super::inode::Inode;
use crate::{Error, Result};
use tuff_format::features::{compat, incompat};
use tuff_format::xattr::{Body, Entry, LONG_PREFIX, LongPrefix, filter_bit, prefix, split};

/// Extended attribute with its full name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Xattr {
    /// Full name, such as `user.comment`.
    pub name: Vec<u8>,
    /// Value of up to 65,535 arbitrary bytes.
    pub value: Vec<u8>,
}

impl Image {
    /// Returns the attributes of an inode that are visible to users, in stored order: inline, then shared. If
    /// a name occurs twice, the first entry wins.
    ///
    /// # Errors
    /// `Corrupt` for an invalid attribute area or a shared id outside the image.
    pub fn xattrs(&self, inode: &Inode) -> Result<Vec<Xattr>> {
        let mut out: Vec<Xattr> = Vec::new();
        self.each_xattr(inode, |entry| {
            let name = self.full_name(entry);
            if let Some(name) = name.filter(|name| !out.iter().any(|x| x.name == *name)) {
                let value = entry.value.to_vec();
                out.push(Xattr { name, value });
            }
            true
        })?;
        Ok(out)
    }

    /// Returns the full name of the attribute that stores content fingerprints, with which kernels share
    /// pages between mounts. `None` if the image has none. A name without a namespace is not visible to
    /// users.
    pub fn fingerprint_name(&self) -> Option<Vec<u8>> {
        let long = self.fingerprint_prefix()?;
        let base = prefix(long.base).unwrap_or_default();
        Some([base, &long.infix].concat())
    }

    fn fingerprint_prefix(&self) -> Option<&LongPrefix> {
        let sb = self.superblock();
        let number = usize::from(sb.ishare_prefix);
        let present = sb.has_compat(compat::ISHARE_XATTRS);
        self.prefixes().get(number).filter(|_| present)
    }

    /// Returns the stored fingerprint of an inode's content. `None` if it has none.
    ///
    /// # Errors
    /// As for [`xattrs`](Self::xattrs).
    pub fn fingerprint(&self, inode: &Inode) -> Result<Option<Vec<u8>>> {
        let Some(long) = self.fingerprint_prefix() else {
            return Ok(None);
        };
        let mut found = None;
        self.each_xattr(inode, |entry| {
            if let Some((base, infix, name)) = self.name_parts(entry)
                && base == long.base
                && [infix, name].concat() == long.infix
            {
                found = Some(entry.value.to_vec());
            }
            found.is_none()
        })?;
        Ok(found)
    }

    /// Returns the value of one attribute. `None` if the inode does not have it.
    ///
    /// If the superblock permits it, the name filter of the inode is trusted, as in the kernel.
    ///
    /// # Errors
    /// As for [`xattrs`](Self::xattrs).
    pub fn xattr(&self, inode: &Inode, name: &[u8]) -> Result<Option<Vec<u8>>> {
        if !inode.has_xattrs() {
            return Ok(None);
        }
        if let (true, Some((index, rest))) = (self.superblock().trusts_filters(), split(name)) {
            let body = self.xattr_body(inode)?;
            let body = Body::new(&body).map_err(|e| Error::format(inode.place(), e))?;
            if body.filter & filter_bit(index, rest) != 0 {
                return Ok(None);
            }
        }
        let mut found = None;
        self.each_xattr(inode, |entry| {
            if self.name_is(entry, name) {
                found = Some(entry.value.to_vec());
            }
            found.is_none()
        })?;
        Ok(found)
    }

    /// Calls `f` with each stored attribute until it returns false.
    pub(crate) fn each_xattr(
        &self,
        inode: &Inode,
        mut f: impl FnMut(&Entry<'_>) -> bool,
    ) -> Result<()> {
        if !inode.has_xattrs() {
            return Ok(());
        }
        let bytes = self.xattr_body(inode)?;
        let bad = |e| Error::format(format_args!("{}: attributes", inode.place()), e);
        let body = Body::new(&bytes).map_err(bad)?;
        for entry in body.entries() {
            if !f(&entry.map_err(bad)?) {
                return Ok(());
            }
        }
        for id in body.shared_ids() {
            let shared = self.shared_xattr(id).map_err(|e| e.within(inode.place()))?;
            let (entry, _) = Entry::decode(&shared).map_err(bad)?;
            if !f(&entry) {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Returns the bytes of the inode's extended attribute area.
    ///
    /// # Errors
    /// `Corrupt` for an area that reaches past the end of the image.
    pub fn xattr_body(&self, inode: &Inode) -> Result<Bytes> {
        self.bytes(
            inode.space(),
            inode.xattr_position(),
            inode.raw().xattr_len(),
        )
        .map_err(|e| e.within("attributes").within(inode.place()))
    }

    /// Returns the address space and position of shared entry `id`.
    pub(crate) fn shared_position(&self, id: u32) -> (Space, u64) {
        let sb = self.superblock();
        // Cannot overflow: at most 2^32 blocks of 2^16 bytes, plus 2^34.
        let pos = (sb.xattr_blkaddr.0 << sb.block_bits.get()) + 4 * u64::from(id);
        let in_metabox = sb.has_compat(compat::SHARED_EA_IN_METABOX) && sb.has(incompat::METABOX);
        (
            if in_metabox {
                Space::Metabox
            } else {
                Space::Image
            },
            pos,
        )
    }

    /// Returns the bytes of shared entry `id`: name and value without padding.
    pub(crate) fn shared_xattr(&self, id: u32) -> Result<Bytes> {
        let (space, pos) = self.shared_position(id);
        let place = |e: Error| e.within(format_args!("shared attribute {id}"));
        let head = self.bytes(space, pos, 4).map_err(place)?;
        let &[name_len, _, v0, v1] = &head[..] else {
            unreachable!("4 bytes were asked for")
        };
        let len = 4 + usize::from(name_len) + usize::from(u16::from_le_bytes([v0, v1]));
        self.bytes(space, pos, len).map_err(place)
    }

    /// Returns the base namespace, the infix and the stored name of an entry. `None` for an undefined long
    /// prefix.
    pub(crate) fn name_parts<'a>(&'a self, entry: &Entry<'a>) -> Option<(u8, &'a [u8], &'a [u8])> {
        if entry.index & LONG_PREFIX == 0 {
            return Some((entry.index, &[], entry.name));
        }
        let long = self
            .prefixes()
            .get(usize::from(entry.index & !LONG_PREFIX))?;
        Some((long.base, &long.infix, entry.name))
    }

    /// Returns the full name as users see it. `None` if it has no visible namespace.
    pub(crate) fn full_name(&self, entry: &Entry<'_>) -> Option<Vec<u8>> {
        let (base, infix, name) = self.name_parts(entry)?;
        Some([prefix(base)?, infix, name].concat())
    }

    fn name_is(&self, entry: &Entry<'_>, name: &[u8]) -> bool {
        let Some((base, infix, stored)) = self.name_parts(entry) else {
            return false;
        };
        let rest = prefix(base)
            .and_then(|p| name.strip_prefix(p))
            .and_then(|rest| rest.strip_prefix(infix));
        rest == Some(stored)
    }
}
