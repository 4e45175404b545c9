//! Container images: which tars their layers are, in a layout of OCI or an archive.
//!
//! ```text
//!  oci      index.json ──► manifest, or another index by platform ──► layers, lowest first
//!  docker   manifest.json ──► config, which has the digests of layers as they are unpacked
//!  files    a directory, or members of a tar, which stay where they are
//! ```
//!
//! Everything is compared with its digest before anything is built from it, but for the digest (`diff_id`) that the config of an OCI
//! image has for a compressed layer as it is unpacked: that is compared while it is read.

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

/// How a container image is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Container {
    /// A layout of OCI in a directory, as skopeo and buildah write it.
    Oci,
    /// A tar of one.
    OciArchive,
    /// What `docker save` writes.
    DockerArchive,
}

/// The layers of the container image at `path`, lowest first: of the one with this name, if one is given, and for this platform
/// (`linux/arm64`, perhaps with a variant), by default Linux on this machine's processor. An archive of Docker is asked for its
/// platform only if one is given.
///
/// # Errors
/// `Source` for what is no such image, or what has another digest; `Usage` if there are several images and none is chosen; `Limit`
/// for an archive of too many members; `Io` for what cannot be read.
pub fn container_layers(
    kind: Container,
    path: &Path,
    name: Option<&str>,
    platform: Option<&str>,
) -> Result<Vec<Source>> {
    let files = match kind {
        Container::Oci => Files::Dir(path.to_owned()),
        Container::OciArchive | Container::DockerArchive => Files::archive(path)?,
    };
    let layers = match kind {
        Container::Oci | Container::OciArchive => oci::layers(&files, name, platform)?,
        Container::DockerArchive => docker::layers(&files, name, platform)?,
    };
    verify(&layers, available_threads())?;
    let source = |layer: Blob| {
        let diff_id = layer.diff_id.as_deref().and_then(bytes);
        layer.member.source(diff_id)
    };
    layers.into_iter().map(source).collect()
}

/// What to tell somebody who builds an image of a container image's files instead of what it holds.
pub(crate) fn hint(tree: &Tree) -> Option<String> {
    let has = |wanted: &[u8]| {
        let mut names = tree.children(ROOT).iter().map(|entry| tree.name(entry));
        names.any(|name| name == wanted)
    };
    let what = if has(b"oci-layout") && has(b"index.json") && has(b"blobs") {
        "a layout of OCI, with container images as blobs; an image of what they hold comes from its directory, as oci:DIR, or a tar of it, as oci-archive:FILE"
    } else if has(b"manifest.json") && has(b"repositories") {
        "an archive of docker save; an image of what it holds comes from its tar, as docker-archive:FILE"
    } else {
        return None;
    };
    Some(format!("the tree is {what}"))
}

/// Bytes of a digest of 64 hexadecimal digits.
fn bytes(hex: &str) -> Option<[u8; 32]> {
    let mut out = [0; 32];
    for (n, byte) in out.iter_mut().enumerate() {
        *byte = u8::from_str_radix(hex.get(2 * n..2 * n + 2)?, 16).ok()?;
    }
    Some(out)
}
