//! Images that the new image refers to: they supply defaults for its options.

use super::settings::SettingArgs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tuff_erofs::Result;
use tuff_erofs::read::{Image, OpenOptions};
use tuff_format::features::Feature;
use tuff_mkfs::{BaseImage, KernelVersion, Options, Source};
use tuff_store::{FileStore, ReadAt};

/// Referenced images, except those that do not open: the build reports these.
pub(crate) struct ReferencedImages(Vec<(PathBuf, Image)>);

impl ReferencedImages {
    /// Opens the bases, and the source images if their data stays `in_place`.
    pub(crate) fn open(bases: &[BaseImage], sources: &[Source], in_place: bool) -> Self {
        let bases = bases.iter().map(|base| (&base.path, &base.devices));
        let sources = sources.iter().filter_map(|source| match source {
            Source::Image { path, devices } if in_place => Some((path, devices)),
            _ => None,
        });
        let images = bases.chain(sources);
        Self(
            images
                .filter_map(|(path, devices)| Some((path.clone(), open(path, devices)?)))
                .collect(),
        )
    }

    /// Returns the oldest kernel that reads all of them.
    pub(crate) fn kernel(&self) -> KernelVersion {
        let kernels = self
            .0
            .iter()
            .map(|(_, image)| image.superblock().min_kernel());
        kernels.max().unwrap_or(KernelVersion::FIRST)
    }

    /// Options that the first image was apparently built with, for `kernel` or a newer one that it needs.
    pub(crate) fn like(&self, kernel: KernelVersion) -> Result<Option<Options>> {
        let like = |(path, image): &(PathBuf, Image)| {
            tuff_mkfs::like(image, kernel).map_err(|e| e.within(path.display()))
        };
        self.0.first().map(like).transpose()
    }

    /// Sets block size, algorithm and alignment of clusters to those of the first image unless given: shared data
    /// requires equal values.
    pub(super) fn set_defaults(&self, settings: &mut SettingArgs) -> Result<()> {
        let kernel = settings.kernel();
        let Some(like) = self.like(kernel.unwrap_or(Options::default().kernel))? else {
            return Ok(());
        };
        let default = like.compression.default;
        if !settings.has("block-size") {
            settings.set("block-size", like.block.size().to_string())?;
        }
        if settings.has("auto") || settings.has("size-budget") {
            return Ok(());
        }
        // An uncompressed base gives no default algorithm.
        if !settings.has("compress") && (settings.has("image-index") || default.is_some()) {
            let method = default.map_or("none", |compression| compression.method.name());
            settings.set("compress", method)?;
        }
        let can = kernel.is_none_or(|kernel| kernel.supports(Feature::ENCODED_EXTENTS));
        if like.layout.unaligned && can && !settings.has("tail-packing") {
            settings.set("unaligned", "on")?;
        }
        Ok(())
    }
}

fn open(path: &Path, devices: &[PathBuf]) -> Option<Image> {
    let store = |path: &Path| FileStore::open(path).ok();
    let device = |path: &PathBuf| Some(Arc::new(store(path)?) as Arc<dyn ReadAt>);
    let options = OpenOptions {
        devices: devices.iter().map(device).collect::<Option<_>>()?,
        ..OpenOptions::default()
    };
    Image::open(store(path)?, options).ok()
}
