//! One inode, decoded and with its place.

use super::fetch::{Bytes, Space, WINDOW};
use super::image::Image;
use crate::{Error, Result};
use tuff_format::Nid;
use tuff_format::inode::{self, FileType, Layout};

/// An inode: what it says about a file, and where what belongs to it lies. Cheap to copy, valid for its image only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inode {
    nid: Nid,
    pos: u64,
    raw: inode::Inode,
    mtime: (i64, u32),
}

impl Inode {
    /// Its number.
    pub fn nid(&self) -> Nid {
        self.nid
    }

    /// Where it lies in its [`space`](Self::space). Unit: bytes.
    pub fn position(&self) -> u64 {
        self.pos
    }

    /// Where it and all that follows it lie.
    pub fn space(&self) -> Space {
        if self.nid.in_metabox() {
            Space::Metabox
        } else {
            Space::Image
        }
    }

    /// The inode as it is stored.
    pub fn raw(&self) -> &inode::Inode {
        &self.raw
    }

    /// The type.
    pub fn file_type(&self) -> FileType {
        self.raw.file_type()
    }

    /// True for a directory.
    pub fn is_dir(&self) -> bool {
        self.file_type() == FileType::Dir
    }

    /// `st_mode`: type and permissions.
    pub fn mode(&self) -> u16 {
        self.raw.mode
    }

    /// Size of the data. Unit: bytes. Says nothing about how much of it there is in the image.
    pub fn size(&self) -> u64 {
        self.raw.size
    }

    /// Owner.
    pub fn uid(&self) -> u32 {
        self.raw.uid
    }

    /// Group.
    pub fn gid(&self) -> u32 {
        self.raw.gid
    }

    /// Link count, as stored.
    pub fn nlink(&self) -> u32 {
        self.raw.nlink
    }

    /// Time of the last change of the data, which is the only time there is: seconds since 1970 and nanoseconds.
    pub fn mtime(&self) -> (i64, u32) {
        self.mtime
    }

    /// Major and minor number of a device.
    pub fn device(&self) -> Option<(u32, u32)> {
        matches!(self.file_type(), FileType::Char | FileType::Block)
            .then(|| inode::decode_device(self.raw.u as u32))
    }

    /// How the data is found.
    pub fn layout(&self) -> Layout {
        self.raw.layout
    }

    /// True if there may be extended attributes.
    pub fn has_xattrs(&self) -> bool {
        self.raw.xattr_icount > 0
    }

    /// Position of the attribute body in the inode's space. Unit: bytes.
    pub fn xattr_position(&self) -> u64 {
        // An inode that was read ends inside its space, so this does not overflow.
        self.pos + self.raw.len() as u64
    }

    /// Position behind the attributes: inline data, or, once aligned, a table or an index. Unit: bytes.
    pub fn payload_position(&self) -> u64 {
        self.xattr_position()
            .saturating_add(self.raw.xattr_len() as u64)
    }

    /// Returns true for a file, directory or symlink that is not empty.
    pub fn has_data(&self) -> bool {
        let kind = self.file_type();
        self.raw.size > 0 && matches!(kind, FileType::File | FileType::Dir | FileType::Symlink)
    }

    /// Number and position, for messages.
    pub fn place(&self) -> String {
        let space = match self.space() {
            Space::Image => "",
            Space::Metabox => "metabox ",
        };
        format!("nid {} ({space}byte {:#x})", self.nid, self.pos)
    }
}

/// A piece of metadata, and which one it is.
pub(crate) struct Near {
    at: (Space, u64),
    bytes: Bytes,
}

impl Image {
    /// The inode with this number.
    ///
    /// # Errors
    /// `Corrupt` if it does not lie inside the image (or the metabox), or breaks a rule; `Unsupported` for a format or
    /// layout of the future.
    pub fn inode(&self, nid: Nid) -> Result<Inode> {
        let (space, pos) = self.inode_position(nid)?;
        let bytes = self
            .bytes_up_to(space, pos, inode::EXTENDED_LEN)
            .map_err(|e| e.within(inode_place(nid, pos)))?;
        self.inode_from(nid, pos, &bytes)
    }

    /// As [`inode`](Self::inode), for many that mostly lie close to each other: `near` is the piece of metadata that the
    /// last one was in.
    pub(crate) fn inode_near(&self, nid: Nid, near: &mut Option<Near>) -> Result<Inode> {
        let (space, pos) = self.inode_position(nid)?;
        // Fits: below WINDOW.
        let (n, from) = (pos / WINDOW, (pos % WINDOW) as usize);
        if near.as_ref().is_none_or(|near| near.at != (space, n)) {
            let piece = self.window_of(space, n).ok();
            *near = piece.map(|bytes| Near {
                at: (space, n),
                bytes,
            });
        }
        let bytes = near.as_ref().map(|near| &*near.bytes);
        match bytes.and_then(|b| b.get(from..from + inode::EXTENDED_LEN)) {
            Some(bytes) => self.inode_from(nid, pos, bytes),
            // At the end of a piece, or of the image; or the piece cannot be read, perhaps for another inode's sake.
            None => self.inode(nid),
        }
    }

    /// Where an inode lies.
    pub(crate) fn inode_position(&self, nid: Nid) -> Result<(Space, u64)> {
        let sb = self.superblock();
        let pos = nid.position(sb.block_bits, sb.meta_blkaddr);
        let pos = pos.ok_or_else(|| {
            Error::corrupt(
                format_args!("nid {nid}"),
                "position does not fit in 64 bits",
            )
        })?;
        let space = if nid.in_metabox() {
            Space::Metabox
        } else {
            Space::Image
        };
        Ok((space, pos))
    }

    /// The inode whose bytes, or those up to the end of its space, these are.
    pub(crate) fn inode_from(&self, nid: Nid, pos: u64, bytes: &[u8]) -> Result<Inode> {
        let sb = self.superblock();
        let raw = inode::Inode::decode(bytes)
            .map_err(|e| Error::format("", e).within(inode_place(nid, pos)))?;
        let mtime = if raw.extended {
            (raw.mtime, raw.mtime_nsec)
        } else {
            (sb.epoch.wrapping_add(raw.mtime), sb.fixed_nsec)
        };
        Ok(Inode {
            nid,
            pos,
            raw,
            mtime,
        })
    }
}

fn inode_place(nid: Nid, pos: u64) -> String {
    format!("nid {nid} (byte {pos:#x})")
}
