//! Images that are open for reading.

use crate::blocks::BlockReader;
use crate::error::Result;
use crate::inode::Inode;
use crate::superblock::Superblock;
use crate::tables;
use crate::xattr::{self, Xattr};
use std::sync::Arc;
use tuff_store::ReadAt;

/// Open image. Threads share it.
pub struct Image {
    pub(crate) reader: BlockReader,
    superblock: Superblock,
    ids: Vec<u32>,
}

impl Image {
    /// Opens an image, which begins at the first byte of the store.
    ///
    /// # Errors
    /// `Corrupt` or `Unsupported` for what is no image of version 4.0; `Io`.
    pub fn open(store: impl ReadAt + 'static) -> Result<Self> {
        let superblock = Superblock::read(&store)?;
        let reader = BlockReader::new(Arc::new(store), &superblock);
        let ids = tables::ids(&reader, &superblock)?;
        Ok(Self {
            reader,
            superblock,
            ids,
        })
    }

    /// Returns the superblock.
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// Reads the inode with this reference.
    ///
    /// # Errors
    /// `Corrupt`, `Limit` or `Io`.
    pub fn inode(&self, reference: u64) -> Result<Inode> {
        Inode::read(&self.reader, &self.superblock, &self.ids, reference)
    }

    /// Reads the inode of the root directory.
    ///
    /// # Errors
    /// Those of [`inode`](Self::inode).
    pub fn root(&self) -> Result<Inode> {
        self.inode(self.superblock.root)
    }

    /// Reads the extended attributes of an inode: full names and values, ascending by name.
    ///
    /// # Errors
    /// `Corrupt`, `Limit` or `Io`.
    pub fn xattrs(&self, inode: &Inode) -> Result<Vec<Xattr>> {
        let Some(index) = inode.xattrs else {
            return Ok(Vec::new());
        };
        let list = tables::xattrs(&self.reader, &self.superblock, index)?;
        xattr::read(&self.reader, &list)
    }
}
