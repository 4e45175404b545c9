//! Inodes of a patched image that keep their nid.
//!
//! ```text
//! old image  │ inodes, indexes, directories │ packed inode │
//!                  ▲ some are overwritten                   new end
//!                                                           │ new data, directories, inodes
//! ```
//!
//! An inode has an address, its nid. While it keeps its nid, the directories that name it stay valid. An unchanged inode
//! stays as it is. A changed one is overwritten where it is if its new form fits there ([`Place`]): of a changed file,
//! the entries of its index change that refer to new clusters. All others get a new place, and their directories are
//! overwritten.
//!
//! Invariants:
//!
//! * An unchanged inode has the metadata, attributes and content of the source. Contents are compared byte by byte.
//! * An old inode stands for at most one new inode.
//! * Only inodes and directories are overwritten, never data: other files may use the same clusters.
//! * Where the image is not replaced as a whole, only the root inode is overwritten, in one sector, at the end.

use crate::base::BaseInode;
use crate::options::{Fragments, Options};
use crate::tree::InodeId;
use hashbrown::HashMap;
use std::ops::Range;
use tuff_erofs::read::Inode;
use tuff_format::Nid;
use tuff_format::config::Configs;
use tuff_format::superblock::Superblock;

/// Place of an old inode that is overwritten.
#[derive(Clone)]
pub(crate) struct Place {
    /// Old inode.
    pub(crate) inode: Inode,
    /// Attributes that follow it, which stay.
    pub(crate) body: Vec<u8>,
    /// Length in bytes of the old inode with its attributes, index and inline tail.
    pub(crate) len: u64,
    /// Whole blocks of an old directory.
    pub(crate) blocks: Range<u32>,
    /// Content of the new inode.
    pub(crate) content: Content,
}

/// Content of an inode, compared with that of the old one.
#[derive(Clone)]
pub(crate) enum Content {
    /// The same content.
    Same,
    /// Another content of the same size: the ranges that differ, in ascending order. Unit: bytes.
    Edited(Vec<Range<u64>>),
    /// Any other content.
    Other,
}

/// Inodes of the patched image that keep their nid.
#[derive(Clone)]
pub(crate) struct Unchanged {
    /// Addresses of the inodes that stay in place with all that follows them.
    pub(crate) nids: HashMap<InodeId, Nid>,
    /// Inodes that are overwritten.
    pub(crate) places: HashMap<InodeId, Place>,
    /// Superblock of the patched image.
    pub(crate) superblock: Superblock,
    /// Compression records of the patched image.
    pub(crate) configs: Configs,
    /// Largest serial number of the old inodes that may stay.
    pub(crate) last_serial: u32,
    /// Position of the inode of the old start list, which a patch drops. Unit: bytes.
    pub(crate) start_list: Option<u64>,
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

    /// Returns the nid of an inode with an old address.
    pub(crate) fn old_nid(&self, inode: InodeId) -> Option<Nid> {
        let overwritten = || self.places.get(&inode).map(|place| place.inode.nid());
        self.nid(inode).or_else(overwritten)
    }

    /// Returns the place of an inode that is overwritten.
    pub(crate) fn place(&self, inode: InodeId) -> Option<&Place> {
        self.places.get(&inode)
    }

    /// Returns the inodes that are overwritten, in the order of their positions.
    pub(crate) fn overwritten(&self) -> Vec<(InodeId, &Place)> {
        let mut all: Vec<_> = self.places.iter().map(|(id, place)| (*id, place)).collect();
        all.sort_unstable_by_key(|(_, place)| place.inode.position());
        all
    }

    /// Returns the old file that has the content of a file.
    pub(crate) fn same_content(&self, inode: InodeId) -> Option<BaseInode> {
        let place = self.places.get(&inode)?;
        let nid = place.inode.nid();
        matches!(place.content, Content::Same).then_some(BaseInode { base: 0, nid })
    }

    /// Returns the place of a file with another content of the same size, and the ranges that differ.
    pub(crate) fn edited(&self, inode: InodeId) -> Option<(&Place, &[Range<u64>])> {
        let place = self.places.get(&inode)?;
        match &place.content {
            Content::Edited(ranges) => Some((place, ranges)),
            _ => None,
        }
    }

    /// Returns the same inodes, except for some that get a new place.
    pub(crate) fn without(&self, inodes: &[InodeId]) -> Self {
        let mut rest = self.clone();
        for inode in inodes {
            rest.places.remove(inode);
        }
        rest
    }
}
