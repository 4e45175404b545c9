//! Image of a report, with what its metadata says.

use crate::image::OpenArgs;
use std::path::{Path, PathBuf};
use tuff_erofs::Result;
use tuff_erofs::dump::TreeUsage;
use tuff_erofs::read::Image;

/// Image with its path and the usage of its tree.
pub(super) struct Source {
    pub(super) path: PathBuf,
    pub(super) image: Image,
    pub(super) usage: TreeUsage,
}

impl Source {
    /// Opens an image and reads its metadata.
    pub(super) fn open(path: &Path, args: &OpenArgs) -> Result<Self> {
        let image = args.open(path)?;
        let shown = crate::remote::shown(path);
        let usage = TreeUsage::of(&image).map_err(|e| e.within(shown.display()))?;
        Ok(Self {
            path: shown,
            image,
            usage,
        })
    }
}
