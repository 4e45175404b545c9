//! Attributes of a name on either side.

use crate::read::{FileType, Inode};

/// What a name stands for.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) kind: FileType,
    /// Without the type.
    pub(super) mode: u16,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) mtime: (i64, u32),
    pub(super) nlink: u64,
    pub(super) size: u64,
    pub(super) device: Option<(u32, u32)>,
    /// The same for all names of an inode.
    pub(super) id: (u64, u64),
    /// In an image.
    pub(super) inode: Option<Inode>,
}
