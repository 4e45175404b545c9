//! Container images: the layers of an OCI layout or a Docker archive.
//!
//! ```text
//! oci      index.json ──► manifest, or another index by platform ──► layers, lowest first
//! docker   manifest.json ──► config, which has the digests of uncompressed layers
//! files    a directory, or members of a tar, which are read in place
//! ```
//!
//! Every blob is verified by its digest before the build starts. The digest of an uncompressed
//! layer (`diff_id`) is verified while the layer is read.

mod blob;
mod digest;
mod docker;
mod document;
mod files;
mod oci;

pub(crate) use digest::Digested;

use crate::Result;
use crate::options::available_threads;
use crate::source::spec::Source;
use crate::tree::{ROOT, Tree};
use blob::{Blob, verify};
use files::Files;
use std::path::Path;

/// Storage form of a container image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Container {
    /// OCI layout in a directory, as written by skopeo and buildah.
    Oci,
    /// OCI layout in a tar.
    OciArchive,
    /// Archive of `docker save`.
    DockerArchive,
}

/// Container image as a source.
#[derive(Clone, Debug)]
pub struct ContainerImage {
    /// Layers, lowest first.
    pub layers: Vec<Source>,
    /// Configuration of the image, in JSON, if it has one.
    pub config: Option<Vec<u8>>,
}

/// Opens the container image at `path`.
///
/// `name` selects an image of several. `platform` selects a platform such as `linux/arm64`,
/// optionally with a variant; the default is Linux on the current processor. The platform of a
/// Docker archive is checked only if it is given.
///
/// # Errors
///
/// * `Source`: not such an image, or a digest differs.
/// * `Usage`: there are several images and none is selected.
/// * `Limit`: an archive has too many members.
/// * `Io`: a file cannot be read.
pub fn container_image(
    kind: Container,
    path: &Path,
    name: Option<&str>,
    platform: Option<&str>,
) -> Result<ContainerImage> {
    let files = match kind {
        Container::Oci => Files::Dir(path.to_owned()),
        Container::OciArchive | Container::DockerArchive => Files::archive(path)?,
    };
    let (layers, config) = match kind {
        Container::Oci | Container::OciArchive => oci::layers(&files, name, platform)?,
        Container::DockerArchive => docker::layers(&files, name, platform)?,
    };
    verify(&layers, available_threads())?;
    let source = |layer: Blob| {
        let diff_id = layer.diff_id.as_deref().and_then(bytes);
        layer.member.source(diff_id)
    };
    Ok(ContainerImage {
        layers: layers.into_iter().map(source).collect::<Result<_>>()?,
        config,
    })
}

/// Warning for a tree that holds the files of a container image rather than its content.
pub(crate) fn hint(tree: &Tree) -> Option<String> {
    let has = |member: &[u8]| {
        let mut names = tree.children(ROOT).iter().map(|entry| tree.name(entry));
        names.any(|name| name == member)
    };
    let what = if has(b"oci-layout") && has(b"index.json") && has(b"blobs") {
        "an OCI layout with container images as blobs; to build from their content, pass its directory as oci:DIR or a tar of it as oci-archive:FILE"
    } else if has(b"manifest.json") && has(b"repositories") {
        "an archive of docker save; to build from its content, pass its tar as docker-archive:FILE"
    } else {
        return None;
    };
    Some(format!("the tree is {what}"))
}

/// Bytes of a digest of 64 hexadecimal digits.
fn bytes(digest: &str) -> Option<[u8; 32]> {
    hex::decode(digest).ok()?.try_into().ok()
}
