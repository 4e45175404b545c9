//! One inode, decoded and with its place.

use super::fetch::Space;
use tuff_format::Nid;
use tuff_format::inode::{self, FileType, Layout};

/// An inode: what it says about a file, and where what belongs to it lies. Cheap to copy, valid for its image only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inode {
    pub(super) nid: Nid,
    pub(super) pos: u64,
    pub(super) raw: inode::Inode,
    pub(super) mtime: (i64, u32),
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
