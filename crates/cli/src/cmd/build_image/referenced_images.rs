//! Images that the new image refers to: they supply defaults for its options.

use super::settings::SettingArgs;
use tuff_erofs::Result;
use tuff_format::features::Feature;
use tuff_mkfs::{InputImage, KernelVersion, Options, Source};

/// Bases, and source images whose data stays in place.
pub(crate) struct ReferencedImages<'a>(Vec<&'a InputImage>);

impl<'a> ReferencedImages<'a> {
    /// Returns the bases, and the source images if their data stays `in_place`.
    pub(crate) fn new(bases: &'a [InputImage], sources: &'a [Source], in_place: bool) -> Self {
        let sources = sources.iter().filter_map(|source| match source {
            Source::Image(image) if in_place => Some(image),
            _ => None,
        });
        Self(bases.iter().chain(sources).collect())
    }

    /// Returns the oldest kernel that reads all of them.
    pub(crate) fn kernel(&self) -> KernelVersion {
        let kernels = self
            .0
            .iter()
            .map(|image| image.image().superblock().min_kernel());
        kernels.max().unwrap_or(KernelVersion::FIRST)
    }

    /// Options that the first image was apparently built with, for `kernel` or a newer one that it needs.
    pub(crate) fn like(&self, kernel: KernelVersion) -> Result<Option<Options>> {
        let like = |image: &&InputImage| {
            let like = tuff_mkfs::like(image.image(), kernel);
            like.map_err(|e| e.within(image.name().display()))
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
