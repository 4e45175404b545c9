//! Images that the new one refers to: what it takes over from them where nothing is said.

use super::args::{Args, MaybeCompression};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tuff_erofs::Result;
use tuff_erofs::read::{Image, OpenOptions};
use tuff_format::features::Feature;
use tuff_mkfs::{BaseImage, KernelVersion, Options, Source};
use tuff_store::{FileStore, ReadAt};

/// The images that the new one refers to, as far as they can be opened: what is wrong with one is an error of the build.
pub(crate) struct ReferencedImages(Vec<(PathBuf, Image)>);

impl ReferencedImages {
    /// The bases, then the sources whose data stays where it is, if it does.
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

    /// The oldest kernel that reads them all.
    pub(crate) fn kernel(&self) -> KernelVersion {
        let kernels = self
            .0
            .iter()
            .map(|(_, image)| image.superblock().min_kernel());
        kernels.max().unwrap_or(KernelVersion::FIRST)
    }

    /// What the first of them seems to be made with, for this kernel or what it needs.
    pub(crate) fn like(&self, kernel: KernelVersion) -> Result<Option<Options>> {
        let like = |(path, image): &(PathBuf, Image)| {
            tuff_mkfs::like(image, kernel).map_err(|e| e.within(path.display()))
        };
        self.0.first().map(like).transpose()
    }

    /// Block size and algorithm, and whether clusters begin anywhere, are those of the first where nothing is said: no other
    /// would do for what is shared.
    pub(super) fn settings(&self, args: &mut Args) -> Result<()> {
        let kernel = args.kernel.unwrap_or(Options::default().kernel);
        let Some(like) = self.like(kernel)? else {
            return Ok(());
        };
        args.block_size.get_or_insert(like.block.size());
        let chosen = args.auto.is_some() || args.size_budget.is_some();
        // A base that is stored says nothing of what is new.
        if !chosen && (args.image_index || like.compression.default.is_some()) {
            args.compress
                .get_or_insert(MaybeCompression(like.compression.default));
        }
        let can = args
            .kernel
            .is_none_or(|kernel| kernel.supports(Feature::ENCODED_EXTENTS));
        args.unaligned |= like.layout.unaligned && can && !chosen && args.tail_packing.is_none();
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
