//! Inodes that a patch leaves where they are.
//!
//! ```text
//! old image  │ ... root │ unchanged inodes, indexes, directories │ packed inode │
//!                  ▲                      ▲                                       new end
//!                  │ overwritten last     │ entries of new directories            │ new data, directories, inodes
//! ```
//!
//! An inode has an address, its nid. A directory that names another nid is a new directory, and so are the directories
//! below it, because their `..` entries name it. The root keeps its nid: its inode is overwritten, in one sector. Hence
//! directories outside of the changed ones stay valid.
//!
//! Invariants:
//!
//! * An unchanged inode has the metadata, attributes and content of the source. Contents are compared byte by byte.
//! * An old inode stands for at most one new inode.
//! * Until the root is overwritten, a reader sees the old tree.

use super::options::{Fragments, Options};
use super::tree::{InodeId, ROOT};
use hashbrown::HashMap;
use tuff_erofs::read::Inode;
use tuff_format::Nid;
use tuff_format::config::Configs;
use tuff_format::superblock::Superblock;

/// Inodes of the patched image that stay in place, and the old root.
pub(crate) struct Unchanged {
    /// Addresses of the inodes that stay in place with all that follows them.
    pub(super) nids: HashMap<InodeId, Nid>,
    pub(super) superblock: Superblock,
    pub(super) configs: Configs,
    pub(super) root: Inode,
    /// Attributes that follow the root inode.
    pub(super) root_body: Vec<u8>,
    /// Largest serial number of the old inodes that may stay.
    pub(super) last_serial: u32,
}

impl Unchanged {
    /// Returns the options of a small patch: new data and attributes are in no shared place.
    pub(crate) fn options(&self, options: &Options) -> Options {
        let mut options = options.clone();
        options.layout.fragments = Fragments::Off;
        options.metadata.xattr_share = u32::MAX;
        options
    }

    /// Returns the nid of an inode that stays in place with all that follows it.
    pub(crate) fn nid(&self, inode: InodeId) -> Option<Nid> {
        self.nids.get(&inode).copied()
    }

    /// Returns the nid of an inode with an old address: an unchanged one, or the root.
    pub(crate) fn old_nid(&self, inode: InodeId) -> Option<Nid> {
        match inode {
            ROOT => Some(self.root.nid()),
            _ => self.nid(inode),
        }
    }

    /// Returns the superblock of the patched image.
    pub(crate) fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// Returns the compression records of the patched image.
    pub(crate) fn configs(&self) -> &Configs {
        &self.configs
    }

    /// Returns the largest serial number of the old inodes that may stay.
    pub(crate) fn last_serial(&self) -> u32 {
        self.last_serial
    }

    /// Returns the serial number of the root.
    pub(crate) fn root_serial(&self) -> u32 {
        self.root.raw().ino
    }

    /// Returns the position of the root inode in bytes.
    pub(crate) fn root_position(&self) -> u64 {
        self.root.position()
    }

    /// Returns true if the root is an inode of 64 bytes.
    pub(crate) fn root_is_extended(&self) -> bool {
        self.root.raw().extended
    }

    /// Returns the attributes that follow the root inode.
    pub(crate) fn root_body(&self) -> &[u8] {
        &self.root_body
    }
}
