//! Open images as inputs of builds.

use crate::image::{OpenImage, open};
use crate::options::{Device, Integrity, OpenOptions};
use tuff_erofs::Result;
use tuff_mkfs::{InputImage, Options};

impl OpenImage {
    /// The image as a source or base of a build, by the names that it was opened by.
    pub fn into_input(self) -> InputImage {
        let devices = self.container().devices().iter();
        let devices = devices.map(|device| device.image.name()).collect();
        let name = self.reference().name();
        InputImage::new(self.into_image(), name, devices)
    }
}

/// Opens the bases that settings of a build name: paths, disks and URLs, each with its root hash if it is `FILE,ROOT-HASH`.
///
/// # Errors
/// Those of [`open`].
pub fn open_bases(options: &mut Options) -> Result<()> {
    for name in std::mem::take(&mut options.dedupe.base_names) {
        let base = Device::parse(name);
        let integrity = base.root.map(|hash| Integrity::Root { hash, tree: None });
        let opened = OpenOptions {
            integrity: integrity.unwrap_or_default(),
            ..OpenOptions::default()
        };
        let image = open(&base.image, &opened)?;
        options.dedupe.bases.push(image.into_input());
    }
    Ok(())
}
