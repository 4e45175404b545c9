//! Upload of an image to a repository: layers that it lacks, documents, and artifacts that refer to it.

use super::blob::Blob;
use super::manifest::documents;
use super::options::{PushOptions, Pushed};
use super::referrer;
use super::signatures::{sign, signatures};
use super::uploader::Uploader;
use super::watch::Watch;
use crate::error::Result;
use crate::registry::{Registry, digest, media};
use serde_json::json;
use sha2::{Digest, Sha256};

/// Uploads an image under a tag.
pub(crate) async fn push(
    registry: &Registry,
    tag: &str,
    layers: &[Blob],
    options: &PushOptions,
    watch: &Watch<'_>,
) -> Result<Pushed> {
    let uploader = Uploader {
        registry,
        watch,
        mount_from: options.mount_from.as_deref(),
    };
    let mut pushed = Vec::new();
    for layer in layers {
        pushed.push(layer.pushed(uploader.blob(layer).await?));
    }
    let documents = documents(layers, options);
    let manifest_len = documents.manifest.len();
    uploader.blob(&Blob::small(documents.config)).await?;
    let manifest = digest(&documents.manifest);
    let sha256 = Sha256::digest(&documents.manifest).into();
    // A tag names the index, and the index the manifest, which therefore comes first.
    let (version, index) = match documents.index {
        Some(index) => (manifest.as_str(), Some(index)),
        None => (tag, None),
    };
    uploader
        .document(version, media::MANIFEST, documents.manifest)
        .await?;
    let mut named = manifest.clone();
    if let Some(index) = index {
        named = digest(&index);
        uploader.document(tag, media::INDEX, index).await?;
    }
    let subject = json!({"mediaType": media::MANIFEST, "digest": manifest, "size": manifest_len});
    if let Some(profile) = &options.profile {
        let content = (media::PROFILE, media::PROFILE, profile.clone());
        referrer::push(&uploader, &subject, content).await?;
    }
    for signature in signatures(layers, options, watch)? {
        let content = (media::ROOT_SIGNATURE, media::PKCS7, signature);
        referrer::push(&uploader, &subject, content).await?;
    }
    if let (Some(signer), [_, _, ..]) = (&options.signer, layers) {
        let signature = sign(signer, &sha256, watch)?;
        let content = (media::MANIFEST_SIGNATURE, media::PKCS7, signature);
        referrer::push(&uploader, &subject, content).await?;
    }
    Ok(Pushed {
        digest: named,
        manifest: Some(manifest),
        layers: pushed,
    })
}
