//! Container images of registries among the sources of a build: copies in temporary directories.

use crate::progress::{Meter, Show, on_signal};
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use tuff_erofs::{Error, Result};
use tuff_open::Device;
use tuff_open::remote::failed;
use tuff_remote::{RetryPolicy, Step, copy_layout};
use tuff_store::TemporaryDir;

/// Sources, with container images of registries as OCI layouts in temporary directories, removed on drop.
pub(crate) struct FetchedImages {
    pub(crate) sources: Vec<PathBuf>,
    dirs: Vec<TemporaryDir>,
}

impl FetchedImages {
    /// Fetches the container images among the sources. `platform`: that of images for several.
    ///
    /// # Errors
    /// Errors of the registry, and of writing the copy. A stopped copy is `Io` with kind `Interrupted`.
    pub(crate) fn fetch(
        sources: &[PathBuf],
        platform: Option<&str>,
        retry: RetryPolicy,
        show: Show,
    ) -> Result<Self> {
        let mut fetched = Self {
            sources: Vec::new(),
            dirs: Vec::new(),
        };
        for source in sources {
            let source_image = Device::parse(source.clone());
            let url = source_image.image.url();
            // Images with a root hash are opened where they are.
            let Some(url) = url.filter(|_| source_image.root.is_none()) else {
                fetched.sources.push(source.clone());
                continue;
            };
            let location = url.location().map_err(|e| failed(e, "cannot read"))?;
            // An image of EROFS layers is opened where it is.
            let is_image = match location.is_registry() {
                true => {
                    let found = tuff_remote::has_layers(location, retry);
                    found.map_err(|e| failed(e, "cannot read"))?
                }
                false => true,
            };
            if is_image {
                fetched.sources.push(source.clone());
                continue;
            }
            let parent = std::env::temp_dir();
            let made = TemporaryDir::create(&parent);
            let made =
                made.map_err(|e| Error::io(parent.display(), "cannot create a directory", e))?;
            let dir = made.path().to_owned();
            fetched.dirs.push(made);
            let stop = on_signal();
            let watched = Watched::new(show, &stop);
            let copied = copy_layout(location, platform, &dir, retry, &|step| watched.step(step));
            copied.map_err(|e| stopped_or(e, &stop, "cannot read"))?;
            let source = format!("oci:{}", dir.display());
            fetched.sources.push(source.into());
        }
        Ok(fetched)
    }
}

/// Error for a failure, or for a signal that caused it.
pub(crate) fn stopped_or(e: tuff_remote::Error, stop: &AtomicBool, what: &str) -> Error {
    match stop.load(Ordering::Relaxed) {
        true => Error::io(e.place(), "stopped", io::ErrorKind::Interrupted.into()),
        false => failed(e, what),
    }
}

/// Progress of a transfer.
pub(crate) struct Watched<'a> {
    meter: Meter,
    stop: &'a AtomicBool,
}

impl<'a> Watched<'a> {
    pub(crate) fn new(show: Show, stop: &'a AtomicBool) -> Self {
        let meter = Meter::start("connect", show);
        Self { meter, stop }
    }

    /// Shows a step. Returns false if the transfer is to stop.
    pub(crate) fn step(&self, step: &Step) -> bool {
        let counter = self.meter.counter();
        counter.set(step.stage, step.bytes, step.total_bytes);
        !self.stop.load(Ordering::Relaxed)
    }
}
