//! Media types and annotations: those of OCI, of the EROFS image specification, and of the referrers of an image.

/// Manifest of an image.
pub(crate) const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

/// List of manifests by platform.
pub(crate) const INDEX: &str = "application/vnd.oci.image.index.v1+json";

/// Configuration of an image.
pub(crate) const CONFIG: &str = "application/vnd.oci.image.config.v1+json";

/// Empty configuration of an artifact that is no image: two bytes, `{}`.
pub(crate) const EMPTY: &str = "application/vnd.oci.empty.v1+json";

/// Access profile of an image, among its referrers.
pub(crate) const PROFILE: &str = "application/vnd.tuff.profile.v1";

/// Signature of the root hash of an image, among its referrers.
pub(crate) const ROOT_SIGNATURE: &str = "application/vnd.tuff.roothash-signature.v1";

/// Signature of the digest of the manifest of an image with several layers or devices, among its referrers.
pub(crate) const MANIFEST_SIGNATURE: &str = "application/vnd.tuff.manifest-signature.v1";

/// Content of both: PKCS #7 in DER.
pub(crate) const PKCS7: &str = "application/pkcs7-signature";

/// Manifests that are read, as the value of `Accept`.
pub(crate) const MANIFESTS: &str = "application/vnd.oci.image.manifest.v1+json, application/vnd.oci.image.index.v1+json, application/vnd.docker.distribution.manifest.v2+json, application/vnd.docker.distribution.manifest.list.v2+json";

/// EROFS image. Layers may also have this type with a suffix that begins with `.` or `+`.
pub(crate) const EROFS: &str = "application/vnd.erofs";

/// EROFS image, by the name that containerd 2.4 knows.
pub(crate) const EROFS_CONTAINERD: &str = "application/vnd.erofs.layer.v1";

/// Plain bytes: a device without a filesystem.
pub(crate) const BYTES: &str = "application/octet-stream";

/// Digests of the chunks of an image, which are no image.
pub(crate) const CHUNK_INDEX: &str = "application/vnd.erofs.chunk-index";

/// Value of `os.features` for images of EROFS layers.
pub(crate) const FEATURE: &str = "erofs";

/// Position of the chunk index in its blob: `START[:END]`.
pub(crate) const CHUNK_INDEX_RANGE: &str = "org.erofs.chunk-index.range";

/// Digest of the chunk index.
pub(crate) const CHUNK_INDEX_DIGEST: &str = "org.erofs.chunk-index.digest";

/// Position of the hash tree.
pub(crate) const HASH_OFFSET: &str = "org.erofs.dmverity.hash_offset";

/// Root hash of the hash tree.
pub(crate) const ROOT_DIGEST: &str = "org.erofs.dmverity.root_digest";

/// Block size of the hash tree.
pub(crate) const HASH_BLOCK: &str = "org.erofs.dmverity.block_size";

/// Metadata of an image that a start reads first: `START:END`.
pub(crate) const METADATA: &str = "vnd.tuff.metadata";

/// Beginning of a recorded profile of the image: an annotation of its manifest.
pub(crate) const RECORDING: &str = "vnd.tuff.profile";

/// Longest such beginning. Unit: bytes.
pub(crate) const RECORDING_MAX: usize = 64 << 10;

/// Last line of a beginning that is not all of the profile.
pub(crate) const RECORDING_CONTINUED: &str = "# continued\n";

/// Ranges of a layer that a start of the image reads, in the order in which they are wanted: `START:END,...`.
pub(crate) const START: &str = "vnd.tuff.start";

/// Longest such text; a manifest has no more of all layers and of the recording together. Unit: bytes.
pub(crate) const START_MAX: usize = RECORDING_MAX;

/// Role of a layer among the others.
pub(crate) const ROLE: &str = "org.erofs.role";

/// Role of a layer that others lie upon, as directories of overlayfs do.
pub(crate) const OVERLAY_LOWER: &str = "overlay-lower";

/// Role of a layer that holds data of the next image: a device of its device table.
pub(crate) const DEVICE: &str = "device";

/// Returns true for the media type of an EROFS image.
pub(crate) fn is_erofs(media: &str) -> bool {
    let suffix = media.strip_prefix(EROFS);
    suffix.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '+']))
        && !media.starts_with(CHUNK_INDEX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn media_types_of_images_are_told_from_others() {
        for suffix in ["", "+zstd", ".layer.v1"] {
            assert!(is_erofs(&format!("{EROFS}{suffix}")), "{suffix}");
        }
        for other in [
            "application/vnd.erofs.chunk-index.v1",
            "application/vnd.erofsx",
            "application/x",
        ] {
            assert!(!is_erofs(other), "{other}");
        }
    }
}
