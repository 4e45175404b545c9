//! Upload of artifacts that refer to an image.

use super::blob::Blob;
use super::uploader::Uploader;
use crate::error::Result;
use crate::registry::{digest, media, referrers};
use reqwest::header::HeaderName;
use serde_json::{Value, json};

/// Header of a registry that has an API for referrers.
const SUBJECT: HeaderName = HeaderName::from_static("oci-subject");

/// Uploads an artifact that refers to the manifest `subject`, a descriptor: its kind, media type and content.
pub(crate) async fn push(
    uploader: &Uploader<'_>,
    subject: &Value,
    (kind, media, content): (&str, &str, Vec<u8>),
) -> Result<()> {
    let content = Blob::small(content);
    uploader.blob(&content).await?;
    uploader.blob(&Blob::small(b"{}".to_vec())).await?;
    let descriptor = (media, content.digest.as_str(), content.size);
    let artifact = referrers::artifact(kind, descriptor, subject);
    let bytes = artifact.to_string().into_bytes();
    let entry = json!({
        "mediaType": media::MANIFEST,
        "artifactType": kind,
        "digest": digest(&bytes),
        "size": bytes.len(),
    });
    let version = digest(&bytes);
    let reply = uploader.document(&version, media::MANIFEST, bytes).await?;
    if reply.header(SUBJECT).is_some() {
        return Ok(());
    }
    add_to_list(uploader, subject, entry).await
}

/// Adds an artifact to the list under the tag that names the subject.
async fn add_to_list(uploader: &Uploader<'_>, subject: &Value, entry: Value) -> Result<()> {
    let tag = referrers::tag(subject["digest"].as_str().unwrap_or_default());
    let known = uploader.registry.manifest_if_any(&tag).await?;
    let mut entries = match known {
        Some(mut index) => match index.object["manifests"].take() {
            Value::Array(entries) => entries,
            _ => Vec::new(),
        },
        None => Vec::new(),
    };
    if entries
        .iter()
        .any(|known| known["digest"] == entry["digest"])
    {
        return Ok(());
    }
    // Readers prefer the first of a kind.
    entries.insert(0, entry);
    let index = json!({"schemaVersion": 2, "mediaType": media::INDEX, "manifests": entries});
    let bytes = index.to_string().into_bytes();
    uploader.document(&tag, media::INDEX, bytes).await.map(drop)
}
