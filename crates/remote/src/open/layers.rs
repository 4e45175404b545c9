//! Layers of images in registries, for those that serve all of them.

use crate::client::Client;
use crate::error::{Error, Kind, Result};
use crate::location::{Address, Location};
use crate::open::images::blob;
use crate::registry::{self, Registry};
use crate::retry::RetryPolicy;
use crate::runtime::runtime;
use std::sync::Arc;

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
pub fn layers(location: &Location, retry: RetryPolicy) -> Result<Vec<Layer>> {
    let place = location.to_string();
    let Address::Oci(reference) = &location.address else {
        return Err(Error::new(Kind::Usage, place, "not an image in a registry"));
    };
    let client = Arc::new(Client::default());
    let registry = Registry::new(client, reference, &place, retry)?;
    let found = runtime()?.block_on(async {
        let manifest = registry::image(&registry, &reference.version).await?;
        registry::layers(&registry, &manifest.object).await
    })?;
    let layer = |(diff_id, layer): (String, registry::Layer)| Layer {
        diff_id,
        size: layer.size,
        hash_offset: layer.hash_offset,
        root_hash: layer.root_hash.clone(),
        location: location.blob(blob(reference, layer), false),
    };
    Ok(found.into_iter().map(layer).collect())
}
