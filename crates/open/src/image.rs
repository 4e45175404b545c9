//! Images that are open, with their containers.

use crate::container::Container;
use crate::options::OpenOptions;
use crate::reference::ImageRef;
use std::ops::Deref;
use tuff_erofs::Result;
use tuff_erofs::read::{self, Image};

/// Open image, and the container that it is read from.
pub struct OpenImage {
    image: Image,
    container: Container,
}

/// Opens the image that a reference names. With a root hash or a certificate, every byte that is read is verified.
///
/// # Errors
/// Those of [`Container::open`], and errors of reading the superblock and what it refers to.
pub fn open(reference: &ImageRef, options: &OpenOptions) -> Result<OpenImage> {
    let container = Container::open(reference, options)?;
    Ok(OpenImage::new(container.image()?, container))
}

impl Container {
    /// Opens the image.
    ///
    /// # Errors
    /// Errors of reading devices, hash tree, superblock and what it refers to.
    pub fn image(&self) -> Result<Image> {
        let (store, devices) = (self.verified_store()?, self.device_stores()?);
        let options = read::OpenOptions {
            devices,
            verify_checksum: !self.options.ignores_checksum,
            ..read::OpenOptions::default()
        };
        let image = Image::open_shared(store, options);
        image.map_err(|e| e.within(self.reference().name().display()))
    }
}

impl OpenImage {
    /// Keeps an image with the container that it was opened from.
    pub fn new(image: Image, container: Container) -> Self {
        Self { image, container }
    }

    /// Container of the image.
    pub fn container(&self) -> &Container {
        &self.container
    }

    /// Reference that the image was opened by.
    pub fn reference(&self) -> &ImageRef {
        self.container.reference()
    }

    /// The image alone. Its stores live as long as it does.
    pub fn into_image(self) -> Image {
        self.image
    }

    /// Fails if some of the image's data is on a device that was not given.
    ///
    /// # Errors
    /// `Usage`, which names the device.
    pub fn with_devices(&self) -> Result<()> {
        let present = self.image.has_devices();
        present.map_err(|e| self.container.absent_device(e))
    }
}

impl Deref for OpenImage {
    type Target = Image;

    fn deref(&self) -> &Image {
        &self.image
    }
}
