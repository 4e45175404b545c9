//! Layers of images in registries, for those that serve all of them.

use crate::address::{Address, Reference};
use crate::error::{Error, Kind, Result};
use crate::location::Location;
use crate::open::images::blob;
use crate::options::Options;
use crate::registry;
use crate::resolve;
use crate::retry::RetryPolicy;
use crate::runtime::runtime;

/// Layer of an image in a registry that is an EROFS image.
#[derive(Clone, Debug)]
pub struct Layer {
    /// Location of the layer, which [`open`](crate::open) opens without another request for the manifest.
    pub location: Location,
    /// SHA-256 of the layer before compression, by which container engines name it. 64 hexadecimal digits.
    pub diff_id: String,
    /// Size of the layer. Unit: bytes.
    pub size: u64,
    /// Root hash of its dm-verity tree, in hexadecimal digits.
    pub root_hash: Option<String>,
    /// Position of the header of that tree. Unit: bytes.
    pub hash_offset: Option<u64>,
}

/// Finds all layers of an image in a registry that are EROFS images, the lowest first.
///
/// # Errors
/// Kinds of [`Error`]: `Usage` if the location names no image in a registry, `Unsupported` if the image has no such layer.
pub fn layers(location: &Location, options: &Options) -> Result<Vec<Layer>> {
    let reference = reference(location)?;
    let found = runtime()?.block_on(async {
        let registry = resolve::registry(location, reference, options).await?;
        let manifest = resolve::manifest(location, reference, &registry, options).await?;
        registry::layers(&registry, &manifest.object).await
    })?;
    location.connections().opened();
    let layer = |(diff_id, layer): (String, registry::Layer)| Layer {
        diff_id,
        size: layer.size,
        hash_offset: layer.stated.hash_offset,
        root_hash: layer.root_hash.clone(),
        location: location.blob(blob(reference, layer), false),
    };
    Ok(found.into_iter().map(layer).collect())
}

/// True if an image in a registry has layers that are EROFS images. Nothing is kept in the cache.
///
/// # Errors
/// Kinds of [`Error`]: `Usage` if the location names no image in a registry, `Unavailable` if it cannot be read.
pub fn has_layers(location: &Location, retry: RetryPolicy) -> Result<bool> {
    let reference = reference(location)?;
    let place = location.to_string();
    let registry = location.connections().registry(reference, &place, retry)?;
    let found = runtime()?.block_on(async {
        let manifest = registry::image(&registry, &reference.version).await?;
        registry::layers(&registry, &manifest.object).await
    });
    match found {
        Err(e) if e.kind() == Kind::Unavailable => Err(e),
        found => Ok(found.is_ok()),
    }
}

fn reference(location: &Location) -> Result<&Reference> {
    match &location.address {
        Address::Oci(reference) => Ok(reference),
        _ => Err(Error::new(
            Kind::Usage,
            location,
            "not an image in a registry",
        )),
    }
}
