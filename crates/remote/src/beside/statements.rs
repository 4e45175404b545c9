//! Statements about an image that a start depends on, for `tuff doctor`. None of them is verified.

use crate::address::Address;
use crate::beside::{ROOT_SIGNATURE, SIGNATURE_MAX, file};
use crate::error::Result;
use crate::location::Location;
use crate::options::Options;
use crate::registry::{self, media, referrers};
use crate::resolve;
use crate::runtime::runtime;

/// Statements about an image, by its manifest and by what lies beside it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statements {
    /// True for an image of a registry, which has a manifest.
    pub is_registry: bool,
    /// Number of EROFS images and devices.
    pub images: usize,
    /// Number of them whose metadata has a stated place.
    pub with_metadata: usize,
    /// Number of them with a root hash in the manifest.
    pub with_root: usize,
    /// Number of them with a chunk index and without a root hash.
    pub with_index: usize,
    /// Number of signatures of root hashes.
    pub signatures: usize,
}

/// Reads statements about the image at a location, which was opened.
///
/// # Errors
/// Kinds of [`Error`](crate::Error) for documents that cannot be read.
pub fn statements(location: &Location, options: &Options) -> Result<Statements> {
    let Address::Oci(reference) = &location.address else {
        let signature = file(location, ROOT_SIGNATURE, SIGNATURE_MAX, options)?;
        return Ok(Statements {
            images: 1,
            signatures: usize::from(signature.is_some()),
            ..Statements::default()
        });
    };
    let find = async {
        let registry = resolve::registry(location, reference, options).await?;
        let manifest = resolve::found_manifest(location, reference, &registry, options).await?;
        let images = registry::images(&registry, &manifest.object)?;
        let kind = media::ROOT_SIGNATURE;
        let signatures =
            referrers::contents(&registry, &manifest.digest, kind, SIGNATURE_MAX).await?;
        let layers: Vec<_> = images
            .into_iter()
            .flat_map(|image| std::iter::once(image.image).chain(image.devices))
            .collect();
        let count = |is: &dyn Fn(&registry::Layer) -> bool| layers.iter().filter(|l| is(l)).count();
        Ok(Statements {
            is_registry: true,
            images: layers.len(),
            with_metadata: count(&|layer| layer.stated.metadata.is_some()),
            with_root: count(&|layer| layer.root_hash.is_some()),
            with_index: count(&|layer| layer.root_hash.is_none() && layer.index.is_some()),
            signatures: signatures.len(),
        })
    };
    runtime()?.block_on(find)
}
