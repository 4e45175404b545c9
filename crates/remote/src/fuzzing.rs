//! Parsers of what servers send, for fuzz targets. Not a part of the interface.
//!
//! Each function panics if a property does not hold.

use crate::address::{Reference, sha256_hex};
use crate::client::Client;
use crate::client::origin;
use crate::registry::{self, Registry};
use crate::retry::RetryPolicy;
use crate::source::content_range as parse_range;
use crate::verify::chunk_index::ChunkIndex;
use reqwest::Url;
use std::sync::Arc;

/// Finds the images of a manifest, whose digests are digests and whose chunk indexes are inside of their blobs.
pub fn manifest(bytes: &[u8]) {
    let Ok(object) = serde_json::from_slice(bytes) else {
        return;
    };
    let reference = Reference {
        registry: "localhost".to_owned(),
        name: "fuzz".to_owned(),
        version: "latest".to_owned(),
    };
    let client = Arc::<Client>::default();
    let registry = Registry::new(client, &reference, "fuzz", RetryPolicy::default());
    let images = registry.and_then(|registry| registry::images(&registry, &object));
    for image in images.unwrap_or_default() {
        for layer in std::iter::once(&image.image).chain(&image.devices) {
            assert!(sha256_hex(&layer.digest).is_some());
            if let Some(index) = &layer.index {
                assert!(index.start < layer.size && sha256_hex(&index.digest).is_some());
            }
        }
    }
}

/// Parses a value of `WWW-Authenticate` and the token service that it names, to which a password may go.
pub fn challenge(value: &str) {
    for base in ["https://registry.example/v2/", "http://127.0.0.1:5000/v2/"] {
        let base = Url::parse(base).expect("a URL");
        for realm in registry::realms(value) {
            if let Ok(service) = origin::token_service(&base, &realm) {
                let is_local = base.scheme() == "http" && origin::is_local_name(&service);
                assert!(service.scheme() == "https" || is_local);
                assert!(service.username().is_empty() && service.password().is_none());
            }
        }
    }
}

/// Parses a value of `Content-Range`.
pub fn content_range(value: &str) {
    if let Some((range, size)) = parse_range(value) {
        assert!(range.start < range.end && size.is_none_or(|size| range.end <= size));
    }
}

/// Parses a chunk index, which encodes to the same bytes.
pub fn chunk_index(bytes: &[u8]) {
    if let Ok(Some(index)) = ChunkIndex::decode(bytes) {
        assert!(index.encode() == bytes);
        // Chunks that do not match are errors, not panics.
        let _ = index.verify(0, bytes);
        let _ = index.verify(u64::MAX, bytes);
    }
}
