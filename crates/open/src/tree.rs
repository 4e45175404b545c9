//! Hash trees of images: after the image, in a partition, or in a file of their own.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use tuff_erofs::Result;
use tuff_erofs::verity::{self, Extent, HashTree, Root, TreePlace, Verified};
use tuff_store::ReadAt;

/// Hash tree of an image.
pub struct ImageTree {
    pub(crate) place: TreePlace,
    /// Bytes that it must cover.
    pub(crate) extent: Extent,
    /// Root hash that the partition table states.
    pub(crate) stated: Option<Root>,
    /// File that holds it.
    pub(crate) path: PathBuf,
}

impl ImageTree {
    /// File that holds the tree.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The tree of `data` as its header describes it.
    ///
    /// # Errors
    /// Errors of reading the tree.
    pub fn header(&self, data: &Arc<dyn ReadAt>) -> Result<HashTree> {
        let stated = verity::stated(data, &self.place, self.extent);
        stated.map_err(|e| e.within(self.path.display()))
    }

    /// Opens `data` verified by the root hash, or else by the one that comes with the image.
    ///
    /// # Errors
    /// `Corrupt` for a tree that does not cover the image, and errors of reading the tree.
    pub fn open(self, data: Arc<dyn ReadAt>, root: Option<Root>) -> Result<Verified> {
        let verified = verity::open(data, self.place, root.or(self.stated), self.extent);
        let verified = verified.map_err(|e| e.within(self.path.display()))?;
        Ok(match root {
            Some(_) => verified,
            None => verified.with_stated_root(),
        })
    }
}
