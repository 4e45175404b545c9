//! Image of a report, with what its metadata says.

use crate::image::OpenArgs;
use std::path::PathBuf;
use tuff_erofs::Result;
use tuff_erofs::dump::TreeUsage;
use tuff_open::{ImageRef, OpenImage};

/// Image with its path and the usage of its tree.
pub(super) struct Source {
    pub(super) path: PathBuf,
    pub(super) image: OpenImage,
    pub(super) usage: TreeUsage,
}

impl Source {
    /// Opens an image and reads its metadata.
    pub(super) fn open(image: &ImageRef, args: &OpenArgs) -> Result<Self> {
        let shown = image.name();
        let image = args.open(image)?;
        let usage = TreeUsage::collect(&image).map_err(|e| e.within(shown.display()))?;
        Ok(Self {
            path: shown,
            image,
            usage,
        })
    }
}
