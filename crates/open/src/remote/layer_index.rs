//! Several EROFS layers as one image: an index of metadata, whose data stays in the layers.
//!
//! Paths of upper layers replace those of lower ones. Whiteouts and opaque directories have the form of overlayfs.

use crate::stores::open_stores;
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tuff_erofs::read::{DeviceRange, StartList};
use tuff_erofs::{Error, Result};
use tuff_mkfs::{
    Fragments, InputImage, KernelVersion, Metadata, Options, Progress, Source, Start, Whiteouts,
};
use tuff_store::{FileStore, ReadAt, Target};

/// Kernel whose features the index may use. An older one that lacks a feature refuses to mount it.
const KERNEL: KernelVersion = KernelVersion(u8::MAX, 0);

/// Layer with its devices, and their names for messages.
pub(super) struct Layer {
    pub(super) image: (PathBuf, Arc<dyn ReadAt>),
    pub(super) devices: Vec<(PathBuf, Arc<dyn ReadAt>)>,
}

/// Index of several layers.
pub struct LayerIndex {
    /// File of the index, which has no name.
    pub file: File,
    /// The same as a store.
    pub store: FileStore,
    /// Properties of layers that the index does not show.
    pub warnings: Vec<String>,
}

/// Parts that the start of a command reads of several layers.
#[derive(Default)]
pub struct LayersStart {
    /// Number of a layer, and positions in it in bytes, in the order in which they are wanted.
    pub ranges: Vec<(usize, Range<u64>)>,
    /// Reasons why ranges are missing.
    pub warnings: Vec<String>,
}

/// Finds what a start reads of `layers` without devices, the lowest first, as one tree. `scratch`: directory for temporary files.
///
/// # Errors
/// Errors of reading the layers, and of the build of their index.
pub fn start_of_layers(layers: &[PathBuf], start: &Start, scratch: &Path) -> Result<LayersStart> {
    let opened: Vec<Layer> = layers
        .iter()
        .map(|path| {
            let store = FileStore::open(path);
            let store = store.map_err(|e| Error::io(path.display(), "cannot open", e))?;
            Ok(Layer {
                image: (path.clone(), Arc::new(store)),
                devices: Vec::new(),
            })
        })
        .collect::<Result<_>>()?;
    let stores = opened.iter().map(|layer| Arc::clone(&layer.image.1));
    let stores = stores.collect();
    let index = build(&opened, scratch, start.clone(), false)?;
    let list = StartList::read(&open_stores(Arc::new(index.store), stores)?)?;
    let list = list.as_ref().map_or(&[][..], StartList::ranges);
    // Data that is in the index is metadata of a layer.
    let of_layer = |range: &DeviceRange| Some((range.device.slot()?, range.bytes.clone()));
    Ok(LayersStart {
        ranges: list.iter().filter_map(of_layer).collect(),
        warnings: index.warnings,
    })
}

/// Builds the index of `layers`, the lowest first, in a file of `scratch` without a name. Its devices are the layers, each
/// before its own devices. It lists what a start reads. `for_kernel`: the kernel may read it.
///
/// # Errors
/// Errors of reading the metadata of the layers, and of the build.
pub(super) fn build(
    layers: &[Layer],
    scratch: &Path,
    start: Start,
    for_kernel: bool,
) -> Result<LayerIndex> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let images: Vec<InputImage> = layers.iter().map(open).collect::<Result<_>>()?;
    let mut options = options(&images)?;
    options.sources.start = start;
    options.dedupe.keeps_collisions = !for_kernel;
    let sources: Vec<Source> = images.into_iter().map(Source::Image).collect();
    // Threads may open images at once.
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let path = scratch.join(format!("layers-{}-{number}.erofs", std::process::id()));
    let target = Target::Path(path.clone());
    let built = tuff_mkfs::build(&sources, &options, &target, &Progress::default());
    let warnings = built?.stats.warnings;
    let failed = |e| Error::io(path.display(), "cannot open", e);
    let file = File::open(&path);
    // The open file stays.
    let _ = std::fs::remove_file(&path);
    let file = file.map_err(failed)?;
    let store = file.try_clone().and_then(FileStore::new).map_err(failed)?;
    Ok(LayerIndex {
        file,
        store,
        warnings,
    })
}

/// Opens the image of a layer.
fn open(layer: &Layer) -> Result<InputImage> {
    let (name, store) = &layer.image;
    let (names, devices) = layer.devices.iter().cloned().unzip();
    let image = open_stores(Arc::clone(store), devices);
    let image = image.map_err(|e| e.within(name.display()))?;
    Ok(InputImage::new(image, name.clone(), names))
}

/// Options with which all data can stay in the layers, as far as the format allows.
fn options(layers: &[InputImage]) -> Result<Options> {
    let like = |layer: &InputImage| {
        let like = tuff_mkfs::like(layer.image(), KERNEL);
        like.map_err(|e| e.within(layer.name().display()))
    };
    let likes: Vec<Options> = layers.iter().map(like).collect::<Result<_>>()?;
    let mut options = Options::for_kernel(KERNEL);
    if let Some(first) = likes.first() {
        options.block = first.block;
    }
    // Clusters of fragments are shared if they have the algorithm of the new packed inode.
    let compressed = likes.iter().find(|like| like.compression.default.is_some());
    options.compression.default = compressed.and_then(|like| like.compression.default);
    if let Some(like) = compressed {
        options.compression.cluster = like.compression.cluster;
        options.layout.fragment_cluster = like.layout.fragment_cluster;
    }
    options.layout.fragments = match compressed {
        Some(_) => Fragments::Tails,
        None => Fragments::Off,
    };
    options.layout.unaligned = likes.iter().any(|like| like.layout.unaligned);
    options.metadata.form = Metadata::Plain;
    options.dedupe.image_index = true;
    options.sources.whiteouts = Some(Whiteouts::Overlay);
    options.fit_clusters();
    Ok(options)
}
