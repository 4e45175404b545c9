//! Addresses of images: parsed parts of their URLs.

use reqwest::Url;
use std::ops::Range;
use std::path::PathBuf;

/// Parsed parts of a URL, by scheme.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Address {
    /// Object of a web server: `https://` or `http://`.
    Http(Url),
    /// Object in a bucket: `s3://BUCKET/KEY`.
    S3 { bucket: String, key: String },
    /// Layer of an image in a registry: `oci://REGISTRY/NAME[:TAG|@DIGEST]`.
    Oci(Reference),
    /// Blob of an image in a registry, known from its manifest.
    Blob(Blob),
    /// Local file: `file:///PATH`.
    File(PathBuf),
}

/// Name of an image in a registry.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Reference {
    /// Host, with a port if the URL has one.
    pub(crate) registry: String,
    /// Name of the repository.
    pub(crate) name: String,
    /// Tag, or digest of a manifest.
    pub(crate) version: String,
}

/// Blob in a registry.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Blob {
    /// Image that the blob belongs to.
    pub(crate) reference: Reference,
    /// Digest of the blob.
    pub(crate) digest: String,
    /// Size of the blob. Unit: bytes.
    pub(crate) size: u64,
    /// Root hash that the manifest states, in hexadecimal digits.
    pub(crate) root_hash: Option<String>,
    /// Statements of the manifest about it.
    pub(crate) stated: Stated,
    /// Start of the chunk index at the end of the blob, in bytes, and its digest.
    pub(crate) index: Option<(u64, String)>,
}

/// Statements of a manifest about an image.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Stated {
    /// Metadata that a start reads first. Unit: bytes.
    pub(crate) metadata: Option<Range<u64>>,
    /// Position of the header of the hash tree. Unit: bytes.
    pub(crate) hash_offset: Option<u64>,
    /// Parts that a start reads, in the order in which it is wanted. Unit: bytes.
    pub(crate) start: Vec<Range<u64>>,
}

/// A URL without user name, password, query and fragment. A query may hold a signature.
pub(crate) fn shown(url: &Url) -> String {
    let mut plain = url.clone();
    // Fails only for URLs without a host.
    let _ = plain.set_username("");
    let _ = plain.set_password(None);
    plain.set_fragment(None);
    let query = plain.query().map_or("", |_| "?...");
    plain.set_query(None);
    format!("{plain}{query}")
}

/// The 64 hexadecimal digits of a digest `sha256:...`, in lower case.
pub(crate) fn sha256_hex(digest: &str) -> Option<&str> {
    let hex = digest.strip_prefix("sha256:")?;
    let is_hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    (hex.len() == 64 && hex.bytes().all(is_hex)).then_some(hex)
}
