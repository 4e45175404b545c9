//! The arguments that every verb over an image has, and how the image is opened.

use crate::units::parse_size;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tuff_image::read::{Image, OpenOptions};
use tuff_image::{Error, Result};
use tuff_store::{FileStore, ReadAt, Window};

/// Where an image is.
#[derive(clap::Args)]
pub(crate) struct ImageArgs {
    /// Image: a file or a block device
    #[arg(value_name = "IMAGE")]
    pub(crate) image: PathBuf,
    #[command(flatten)]
    pub(crate) open: OpenArgs,
}

/// How to open an image.
#[derive(Clone, clap::Args)]
pub(crate) struct OpenArgs {
    /// Where the image starts
    #[arg(long, default_value = "0", value_parser = parse_size, value_name = "BYTES", help_heading = "Image")]
    pub(crate) offset: u64,
    /// Extra device, once for each slot of the device table, in its order
    #[arg(long, value_name = "FILE", help_heading = "Image")]
    pub(crate) device: Vec<PathBuf>,
    /// Accept a superblock with a wrong checksum
    #[arg(long, help_heading = "Image")]
    pub(crate) no_checksum: bool,
}

impl ImageArgs {
    /// Opens the image.
    pub(crate) fn open(&self) -> Result<Image> {
        self.open.open(&self.image)
    }

    /// Opens the image even if its superblock has a wrong checksum, for those who report that.
    pub(crate) fn open_unverified(&self) -> Result<Image> {
        self.open.open_with(&self.image, false)
    }

    /// Fails if some of the image's data is on a device that was not given.
    pub(crate) fn with_devices(&self, image: &Image) -> Result<()> {
        let missing = image.has_devices();
        missing.map_err(|e| {
            Error::usage(format_args!(
                "{}: {e} (--device FILE)",
                self.image.display()
            ))
        })
    }
}

impl OpenArgs {
    /// Opens the image at `path`.
    pub(crate) fn open(&self, path: &Path) -> Result<Image> {
        self.open_with(path, !self.no_checksum)
    }

    fn open_with(&self, path: &Path, verify_checksum: bool) -> Result<Image> {
        let store = file(path)?;
        if self.offset > store.size() {
            return Err(Error::usage(format_args!(
                "{}: --offset {} is past its end, byte {}",
                path.display(),
                self.offset,
                store.size()
            )));
        }
        let devices: Result<Vec<Arc<dyn ReadAt>>> = self
            .device
            .iter()
            .map(|path| Ok(Arc::new(file(path)?) as Arc<dyn ReadAt>))
            .collect();
        let options = OpenOptions {
            devices: devices?,
            verify_checksum,
            ..OpenOptions::default()
        };
        let image = match self.offset {
            0 => Image::open(store, options),
            offset => Image::open(Window::from(store, offset), options),
        };
        image.map_err(|e| e.within(path.display()))
    }
}

fn file(path: &Path) -> Result<FileStore> {
    FileStore::open(path).map_err(|e| Error::io(path.display(), "cannot open", e))
}
