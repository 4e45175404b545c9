//! Artifacts that refer to an image: by the API of the registry, or by a tag that names the image's digest.

use super::digest::digest as digest_of;
use super::media;
use super::repository::Registry;
use crate::address::sha256_hex;
use crate::error::Result;
use crate::trace::Reason;
use serde_json::{Value, json};

/// Number of referrers of one kind that are looked at.
const REFERRERS_MAX: usize = 128;

/// Tag of the list of referrers in a registry without an API for them.
pub(crate) fn tag(subject: &str) -> String {
    subject.replace(':', "-")
}

/// Reads the contents of the artifacts of a kind that refer to a manifest, the first ones first. Each has at most `limit`
/// bytes.
pub(crate) async fn contents(
    registry: &Registry,
    subject: &str,
    kind: &str,
    limit: usize,
) -> Result<Vec<Vec<u8>>> {
    let digests = Reason::Beside.scope(list(registry, subject, kind)).await?;
    registry.keep(
        &path(subject, kind),
        &Value::from(digests.clone()).to_string().into_bytes(),
    );
    Reason::Beside.scope(read(registry, &digests, limit)).await
}

/// Contents of the artifacts that an earlier answer of the registry named. `None` if there was none.
pub(crate) async fn kept_contents(
    registry: &Registry,
    subject: &str,
    kind: &str,
    limit: usize,
) -> Result<Option<Vec<Vec<u8>>>> {
    let kept = registry.kept(&path(subject, kind));
    let kept = kept.and_then(|kept| serde_json::from_slice::<Vec<String>>(&kept).ok());
    match kept {
        Some(digests) => {
            let found = Reason::Beside.scope(read(registry, &digests, limit));
            found.await.map(Some)
        }
        None => Ok(None),
    }
}

async fn read(registry: &Registry, digests: &[String], limit: usize) -> Result<Vec<Vec<u8>>> {
    let mut out = Vec::new();
    for digest in digests {
        let Some(manifest) = registry.manifest_if_any(digest).await? else {
            continue;
        };
        let layer = &manifest.object["layers"][0];
        let is_small = layer["size"]
            .as_u64()
            .is_some_and(|size| size <= limit as u64);
        let digest = layer["digest"].as_str().filter(|d| sha256_hex(d).is_some());
        if let Some(digest) = digest.filter(|_| is_small) {
            out.push(registry.blob(digest, limit).await?);
        }
    }
    Ok(out)
}

/// Path of the list of artifacts of a kind that refer to a manifest.
fn path(subject: &str, kind: &str) -> String {
    format!("referrers/{subject}?artifactType={kind}")
}

/// Digests of the artifacts of a kind that refer to a manifest.
async fn list(registry: &Registry, subject: &str, kind: &str) -> Result<Vec<String>> {
    let listed = registry.document(&path(subject, kind), None).await?;
    let index = match listed {
        Some(index) => Some(index),
        None => registry.manifest_if_any(&tag(subject)).await?,
    };
    let index = index.map_or_else(|| json!({}), |index| index.object);
    let entries = index["manifests"].as_array().map_or(&[][..], Vec::as_slice);
    // A registry may answer with all kinds.
    let of_kind = entries.iter().filter(|entry| entry["artifactType"] == kind);
    let digests = of_kind.filter_map(|entry: &Value| entry["digest"].as_str());
    let valid = digests.filter(|digest| sha256_hex(digest).is_some());
    Ok(valid.take(REFERRERS_MAX).map(str::to_owned).collect())
}

/// Manifest of an artifact that refers to another manifest. `content`: media type, digest and size.
pub(crate) fn artifact(kind: &str, content: (&str, &str, u64), subject: &Value) -> Value {
    let (media, digest, size) = content;
    json!({
        "schemaVersion": 2,
        "mediaType": media::MANIFEST,
        "artifactType": kind,
        "config": {"mediaType": media::EMPTY, "digest": digest_of(b"{}"), "size": 2},
        "layers": [{"mediaType": media, "digest": digest, "size": size}],
        "subject": subject,
    })
}
