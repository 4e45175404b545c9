//! Decoded inode and its position.

use super::fetch::Space;
use crate::Place;
use tuff_format::Nid;
use tuff_format::inode::{self, FileType, Layout};

/// Decoded inode with its position in the image. Cheap to copy; valid only for the image it was read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inode {
    pub(super) nid: Nid,
    pub(super) pos: u64,
    pub(super) raw: inode::Inode,
    pub(super) mtime: (i64, u32),
}

impl Inode {
    /// Returns the inode number.
    pub fn nid(&self) -> Nid {
        self.nid
    }

    /// Returns the position of the inode in its [`space`](Self::space). Unit: bytes.
    pub fn position(&self) -> u64 {
        self.pos
    }

    /// Returns the address space of the inode and of its extended attributes, tables and inline data.
    pub fn space(&self) -> Space {
        if self.nid.in_metabox() {
            Space::Metabox
        } else {
            Space::Image
        }
    }

    /// Returns the inode as it is stored.
    pub fn raw(&self) -> &inode::Inode {
        &self.raw
    }

    /// Returns the type of the file.
    pub fn file_type(&self) -> FileType {
        self.raw.file_type()
    }

    /// Returns true for a directory.
    pub fn is_dir(&self) -> bool {
        self.file_type() == FileType::Dir
    }

    /// Returns `st_mode`: type and permissions.
    pub fn mode(&self) -> u16 {
        self.raw.mode
    }

    /// Returns the file size. Unit: bytes. The image may store fewer bytes: holes and compression.
    pub fn size(&self) -> u64 {
        self.raw.size
    }

    /// Returns the user id of the owner.
    pub fn uid(&self) -> u32 {
        self.raw.uid
    }

    /// Returns the group id of the owner.
    pub fn gid(&self) -> u32 {
        self.raw.gid
    }

    /// Returns the link count as stored.
    pub fn nlink(&self) -> u32 {
        self.raw.nlink
    }

    /// Returns the modification time in seconds since 1970 and nanoseconds. The format stores no other time.
    pub fn mtime(&self) -> (i64, u32) {
        self.mtime
    }

    /// Returns the major and minor number of a character or block device, `None` for other types.
    pub fn device(&self) -> Option<(u32, u32)> {
        matches!(self.file_type(), FileType::Char | FileType::Block)
            .then(|| inode::decode_device(self.raw.u as u32))
    }

    /// Returns the data layout.
    pub fn layout(&self) -> Layout {
        self.raw.layout
    }

    /// Returns true if the inode may have extended attributes.
    pub fn has_xattrs(&self) -> bool {
        self.raw.xattr_icount > 0
    }

    /// Returns the position of the extended attribute area in the inode's space. Unit: bytes.
    pub fn xattr_position(&self) -> u64 {
        // Cannot overflow: an inode that was read ends inside its space.
        self.pos + self.raw.len() as u64
    }

    /// Returns the position after the extended attributes. Inline data starts there; a table or an index
    /// starts at the next aligned position. Unit: bytes.
    pub fn payload_position(&self) -> u64 {
        self.xattr_position()
            .saturating_add(self.raw.xattr_len() as u64)
    }

    /// Returns true for a file, directory or symlink that is not empty.
    pub fn has_data(&self) -> bool {
        let kind = self.file_type();
        self.raw.size > 0 && matches!(kind, FileType::File | FileType::Dir | FileType::Symlink)
    }

    /// Returns number and position for messages.
    pub fn place(&self) -> Place {
        Place::inode(self.nid, self.pos)
    }
}
