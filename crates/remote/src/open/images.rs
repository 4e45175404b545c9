//! Images of several stores: the EROFS images of a manifest, or an object, each with the devices that hold data of it.

use crate::address::{Address, Blob, Reference};
use crate::error::{Error, Kind, Result};
use crate::location::Location;
use crate::open::device_list;
use crate::open::open_store;
use crate::options::Options;
use crate::registry::{self, LayeredImage};
use crate::resolve;
use crate::runtime::runtime;
use crate::store::RemoteStore;
use std::sync::Arc;
use tuff_format::superblock::{self, Superblock};
use tuff_store::ReadAt;

/// Number of stores that are opened at once.
const AT_ONCE: usize = 8;

/// EROFS image with its devices.
pub struct OpenImage {
    /// The image.
    pub store: Arc<RemoteStore>,
    /// Devices in the order of its device table. Empty if the location names none.
    pub devices: Vec<Arc<RemoteStore>>,
}

/// Opens the images at a location, the lowest first: all EROFS images of a manifest, or one object. The devices of an
/// object are those of the list beside it.
///
/// If `has_devices`, the caller has the devices, and none is opened.
///
/// # Errors
/// Kinds of [`Error`], each with one sentence that names the location. `Usage` for a root hash in the options that does not
/// cover what the location names, `Untrusted` for a list of devices that the certificate in the options has not signed.
pub fn open_images(
    location: &Location,
    options: &Options,
    has_devices: bool,
) -> Result<Vec<OpenImage>> {
    let Address::Oci(reference) = &location.address else {
        let store = open_store(location, options)?;
        let devices = match has_devices {
            true => Vec::new(),
            false => devices_beside(location, &store, options)?,
        };
        location.connections().opened();
        return Ok(vec![OpenImage { store, devices }]);
    };
    let mut images = images_of_manifest(location, reference, options)?;
    if has_devices {
        images.iter_mut().for_each(|image| image.truncate(1));
    }
    check_root(location, reference, &images, options)?;
    let no_root = Options {
        root_hash: None,
        ..options.clone()
    };
    let is_only = images.len() == 1 && images[0].len() == 1;
    let mut parts = Vec::new();
    for image in &images {
        for (number, blob) in image.iter().enumerate() {
            parts.push((
                location.blob(blob.clone(), is_only),
                match number {
                    0 => options,
                    _ => &no_root,
                },
            ));
        }
    }
    let mut stores = open_all(&parts)?.into_iter();
    location.connections().opened();
    let open = |blobs: Vec<Blob>| -> Option<OpenImage> {
        Some(OpenImage {
            store: stores.next()?,
            devices: stores.by_ref().take(blobs.len() - 1).collect(),
        })
    };
    Ok(images.into_iter().filter_map(open).collect())
}

/// Blobs of the images of a manifest, the lowest first: each image, then its devices.
pub(crate) fn images_of_manifest(
    location: &Location,
    reference: &Reference,
    options: &Options,
) -> Result<Vec<Vec<Blob>>> {
    let images = runtime()?.block_on(async {
        let registry = resolve::registry(location, reference, options).await?;
        let manifest = resolve::manifest(location, reference, &registry, options).await?;
        registry::images(&registry, &manifest.object)
    })?;
    let blobs = |LayeredImage { image, devices }| {
        let layers = std::iter::once(image).chain(devices);
        layers.map(|layer| blob(reference, layer)).collect()
    };
    Ok(images.into_iter().map(blobs).collect())
}

/// Blob of a layer of an image.
pub(crate) fn blob(reference: &Reference, layer: registry::Layer) -> Blob {
    Blob {
        reference: reference.clone(),
        digest: layer.digest,
        size: layer.size,
        root_hash: layer.root_hash,
        stated: layer.stated,
        index: layer.index.map(|index| (index.start, index.digest)),
    }
}

/// Fails if a root hash was given, and the manifest names stores that it does not cover.
fn check_root(
    location: &Location,
    reference: &Reference,
    images: &[Vec<Blob>],
    options: &Options,
) -> Result<()> {
    if options.root_hash.is_none() {
        return Ok(());
    }
    if images.len() > 1 {
        let what = format!(
            "the root hash is that of one image, and the manifest holds {}; name the image by its digest instead (NAME@sha256:...)",
            images.len()
        );
        return Err(Error::new(Kind::Usage, location, what));
    }
    let has_devices = images.iter().any(|image| image.len() > 1);
    if has_devices && !reference.version.contains(':') {
        let what = "the root hash does not cover the devices of the image; name the image by its digest as well (NAME@sha256:...)";
        return Err(Error::new(Kind::Usage, location, what));
    }
    Ok(())
}

/// Opens stores, several at once.
fn open_all(parts: &[(Location, &Options)]) -> Result<Vec<Arc<RemoteStore>>> {
    let mut stores = Vec::new();
    for parts in parts.chunks(AT_ONCE) {
        let opened: Vec<Result<_>> = std::thread::scope(|scope| {
            let open = |(location, options): &(Location, &Options)| {
                let (location, options) = (location.clone(), (*options).clone());
                scope.spawn(move || open_store(&location, &options))
            };
            let threads: Vec<_> = parts.iter().map(open).collect();
            let joined = threads.into_iter().map(|thread| {
                let ended = thread.join();
                ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            });
            joined.collect()
        });
        stores.extend(opened.into_iter().collect::<Result<Vec<_>>>()?);
    }
    Ok(stores)
}

/// Opens the devices that the list beside an object names. None without a list, or if the image needs none.
fn devices_beside(
    location: &Location,
    store: &RemoteStore,
    options: &Options,
) -> Result<Vec<Arc<RemoteStore>>> {
    let mut head = [0; 128];
    // A failure comes again when the image is opened.
    let is_read = store.read_exact_at(&mut head, superblock::OFFSET).is_ok();
    let sb = Superblock::decode(&head).ok().filter(|_| is_read);
    if sb.is_none_or(|sb| sb.extra_devices == 0) {
        return Ok(Vec::new());
    }
    let listed = device_list::read(location, options)?;
    let of_device: Vec<(Location, Options)> = listed
        .into_iter()
        .map(|(location, root_hash)| {
            let options = Options {
                root_hash,
                ..options.clone()
            };
            (location, options)
        })
        .collect();
    let parts: Vec<(Location, &Options)> = of_device
        .iter()
        .map(|(location, options)| (location.clone(), options))
        .collect();
    open_all(&parts)
}
