//! Signatures of the root hashes of layers.

use super::blob::Blob;
use super::options::PushOptions;
use super::watch::Watch;
use crate::error::{Kind, Result};

/// Signs the root hash of each layer that has one, if there is a signer.
pub(crate) fn signatures(
    layers: &[Blob],
    options: &PushOptions,
    watch: &Watch<'_>,
) -> Result<Vec<Vec<u8>>> {
    let Some(signer) = &options.signer else {
        return Ok(Vec::new());
    };
    let trees = layers.iter().filter_map(|layer| layer.tree.as_ref());
    let signed = trees.map(|tree| signer.sign(&tree.root));
    let signed: Option<Vec<_>> = signed.collect();
    match signed {
        Some(signed) if !signed.is_empty() => Ok(signed),
        Some(_) => Err(watch.error(
            Kind::Usage,
            "the image has no hash tree, whose root hash could be signed; tuff verity add appends one",
        )),
        None => Err(watch.error(Kind::Usage, "the root hash cannot be signed")),
    }
}
