//! Attributes of an entry on either side.

use crate::read::{FileType, Inode};

/// Inode of an entry, with the attributes to compare.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) kind: FileType,
    /// Permission bits, without the file type.
    pub(super) mode: u16,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) mtime: (i64, u32),
    pub(super) nlink: u64,
    pub(super) size: u64,
    pub(super) device: Option<(u32, u32)>,
    /// Identity of the inode, equal for all its links.
    pub(super) id: (u64, u64),
    /// Inode of the image. `None` on the host.
    pub(super) inode: Option<Inode>,
}
