//! Images in stores that the caller has.

use std::sync::Arc;
use tuff_erofs::Result;
use tuff_erofs::read::{Image, OpenOptions};
use tuff_store::ReadAt;

/// Opens the image in a store with its devices. Nothing but the store verifies it.
///
/// # Errors
/// Errors of reading the superblock and what it refers to.
pub fn open_stores(store: Arc<dyn ReadAt>, devices: Vec<Arc<dyn ReadAt>>) -> Result<Image> {
    let options = OpenOptions {
        devices,
        ..OpenOptions::default()
    };
    Image::open_shared(store, options)
}
