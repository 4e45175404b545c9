//! Signatures of the root hashes of layers, and of lists of devices.

use super::blob::Blob;
use super::options::PushOptions;
use super::watch::Watch;
use crate::error::{Kind, Result};
use tuff_signature::Signer;

/// Signs the root hash of each layer, if there is a signer. All or none: readers want a signature for each.
pub(crate) fn signatures(
    layers: &[Blob],
    options: &PushOptions,
    watch: &Watch<'_>,
) -> Result<Vec<Vec<u8>>> {
    let Some(signer) = &options.signer else {
        return Ok(Vec::new());
    };
    let mut signed = Vec::new();
    for layer in layers {
        let no_tree = || {
            let name = if layer.is_device {
                "a device of the image"
            } else {
                "the image"
            };
            let what = format_args!(
                "{name} has no hash tree, whose root hash could be signed; tuff verity add appends one"
            );
            watch.error(Kind::Usage, what)
        };
        let tree = layer.tree.as_ref().ok_or_else(no_tree)?;
        signed.push(sign(signer, &tree.root, watch)?);
    }
    Ok(signed)
}

/// Signs a root hash, or another digest of 32 bytes.
pub(crate) fn sign(signer: &Signer, digest: &[u8; 32], watch: &Watch<'_>) -> Result<Vec<u8>> {
    let failed = || watch.error(Kind::Usage, "the root hash cannot be signed");
    signer.sign(digest).ok_or_else(failed)
}
