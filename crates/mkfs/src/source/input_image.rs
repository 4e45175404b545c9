//! Open images that a build reads.

use crate::{Error, Place, Result};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tuff_erofs::read::{Image, OpenOptions};
use tuff_store::FileStore;

/// Open image that a build reads: a source, or a base. What verifies its stores verifies what the build takes from it.
#[derive(Clone)]
pub struct InputImage {
    image: Arc<Image>,
    /// Its name, then those of its devices.
    names: Vec<PathBuf>,
}

impl InputImage {
    /// Takes an image. `name` and `devices`, in the order of its device table, name its files in messages. A build fails
    /// rather than write over one of them. Devices without a name get one from the image.
    pub fn new(image: Image, name: PathBuf, devices: Vec<PathBuf>) -> Self {
        let count = image.stores().len();
        let mut names = vec![name];
        names.extend(devices);
        for number in names.len()..count {
            let name = format!("{}, device {number}", names[0].display());
            names.push(name.into());
        }
        names.truncate(count);
        let image = Arc::new(image);
        Self { image, names }
    }

    /// Opens the image that a patch has written or is to change.
    pub(crate) fn of_patch(path: &Path) -> Result<Self> {
        let place = || Place::file(path.display());
        let store = FileStore::open(path).map_err(|e| Error::io(place(), "cannot open", e))?;
        let image = Image::open(store, OpenOptions::default()).map_err(|e| e.within(place()))?;
        Ok(Self::new(image, path.to_owned(), Vec::new()))
    }

    /// Its name in messages.
    pub fn name(&self) -> &Path {
        &self.names[0]
    }

    /// The image.
    pub fn image(&self) -> &Image {
        &self.image
    }

    /// Its name, then that of each device with a store of its own.
    pub(crate) fn names(&self) -> &[PathBuf] {
        &self.names
    }

    /// Opens it again, with caches of its own.
    pub(crate) fn reopen(&self) -> Result<Image> {
        let image = self.image.reopen();
        image.map_err(|e| e.within(Place::file(self.name().display())))
    }
}

impl fmt::Debug for InputImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("InputImage").field(&self.names).finish()
    }
}
