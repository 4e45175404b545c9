//! Signatures that come with an image: among the referrers of a manifest, or in files beside it.

pub(crate) mod profile;

use crate::client::Client;
use crate::error::{Error, Kind, Result};
use crate::location::{Address, Location, Reference, sha256_hex};
use crate::registry::{self, Registry, media, referrers};
use crate::retry::RetryPolicy;
use crate::runtime::runtime;
use crate::source;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use tuff_signature::Certificate;
use tuff_verity::Root;

/// Suffix of the file with the access profile of an image.
pub(crate) const PROFILE: &str = ".profile";

/// Suffix of the file that lists the devices of an image.
pub(crate) const DEVICES: &str = ".devices";

/// Suffix of the file with the signature of that list.
pub(crate) const DEVICES_SIGNATURE: &str = ".devices.p7s";

/// Suffix of the file with the root hash of an image, in hexadecimal digits.
pub(crate) const ROOT_HASH: &str = ".roothash";

/// Suffix of the file with the signature of the root hash.
pub(crate) const ROOT_SIGNATURE: &str = ".roothash.p7s";

/// Longest root hash or signature. Unit: bytes.
pub(crate) const SIGNATURE_MAX: usize = 64 << 10;

/// Location of an image that was signed by a certificate, and its root hash. The location names the image by its digest, if
/// it has one. The root hash is `None` for several images in a registry, whose manifest states theirs.
///
/// Each image of a manifest and each device needs a signature of its root hash. If there are several, the digest of the manifest
/// needs one too: signed images and devices cannot be combined in another way. The list of devices beside an object needs one as
/// well, which [`Options::trust`](crate::Options::trust) verifies when the devices are opened.
///
/// # Errors
/// `Untrusted` if the certificate has not signed one of them; other kinds of [`Error`].
pub fn trusted(
    location: &Location,
    certificate: &Certificate,
    retry: RetryPolicy,
) -> Result<(Location, Option<Root>)> {
    let place = location.to_string();
    let refused = |what: &str| {
        let by = certificate.place();
        let what = format_args!("{what}, so it is not trusted by {by}");
        Error::new(Kind::Untrusted, &place, what)
    };
    let no_root = "the image comes without a root hash that a signature could be of";
    let (pinned, images, roots, signatures) = match &location.address {
        Address::Oci(reference) => {
            let registry = Registry::new(Arc::<Client>::default(), reference, &place, retry)?;
            let find = async {
                let manifest = registry::image(&registry, &reference.version).await?;
                let images = registry::images(&registry, &manifest.object)?;
                let digest = manifest.digest;
                let of = |kind| referrers::contents(&registry, &digest, kind, SIGNATURE_MAX);
                let signatures = of(media::ROOT_SIGNATURE).await?;
                let is_one = matches!(&images[..], [image] if image.devices.is_empty());
                let combination = match is_one {
                    true => None,
                    false => Some(of(media::MANIFEST_SIGNATURE).await?),
                };
                Ok((digest, images, signatures, combination))
            };
            let (digest, images, signatures, combination) = runtime()?.block_on(find)?;
            if let Some(found) = combination {
                let digest = sha256_hex(&digest).and_then(registry::root);
                let mut found = found.iter();
                let is_signed =
                    |digest| found.any(|signature| certificate.has_signed(&digest, signature));
                if !digest.is_some_and(is_signed) {
                    return Err(refused(
                        "the manifest, which combines layers and devices, has no signature by the certificate",
                    ));
                }
            }
            let pinned = Location::of_image(Reference {
                version: digest,
                ..reference.clone()
            });
            let count = images.len();
            let layers = images
                .into_iter()
                .flat_map(|image| std::iter::once(image.image).chain(image.devices));
            let roots: Option<Vec<String>> = layers.map(|layer| layer.root_hash).collect();
            let roots = roots.ok_or_else(|| refused(no_root))?;
            (pinned, count, roots, signatures)
        }
        _ => {
            let root = file(location, ROOT_HASH, SIGNATURE_MAX, retry)?;
            let root = root.ok_or_else(|| refused(no_root))?;
            let root = String::from_utf8_lossy(&root).trim().to_owned();
            let signature = file(location, ROOT_SIGNATURE, SIGNATURE_MAX, retry)?;
            let signatures = signature.into_iter().collect();
            (location.clone(), 1, vec![root], signatures)
        }
    };
    let roots: Option<Vec<Root>> = roots.iter().map(|digits| registry::root(digits)).collect();
    let roots = roots.ok_or_else(|| {
        refused("its root hash is not 64 hexadecimal digits, which a signature could be of")
    })?;
    if signatures.is_empty() {
        return Err(refused("the image comes without a signature"));
    }
    let is_signed = |root: &Root| {
        let mut signatures = signatures.iter();
        signatures.any(|signature: &Vec<u8>| certificate.has_signed(root, signature))
    };
    match roots.iter().all(is_signed) {
        true => Ok((pinned, roots.first().copied().filter(|_| images == 1))),
        false => Err(refused(
            "no signature of the root hash is by the certificate",
        )),
    }
}

/// Reads a small file beside an image. `None` if there is none.
pub(crate) fn file(
    location: &Location,
    suffix: &str,
    limit: usize,
    retry: RetryPolicy,
) -> Result<Option<Vec<u8>>> {
    let Some(beside) = location.with_suffix(suffix) else {
        return Ok(None);
    };
    if let Some(path) = beside.local_path() {
        return local(path, limit);
    }
    let opened = source::open(&beside, limit as u64, true, retry);
    match runtime()?.block_on(opened) {
        Ok(opened) => Ok(Some(opened.head)),
        Err(e) if e.is_missing() => Ok(None),
        Err(e) => Err(e),
    }
}

fn local(path: &Path, limit: usize) -> Result<Option<Vec<u8>>> {
    let failed = |e| Error::new(Kind::Unavailable, path.display(), e);
    let file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(failed(e)),
    };
    let mut bytes = Vec::new();
    let read = file.take(limit as u64).read_to_end(&mut bytes);
    read.map(|_| Some(bytes)).map_err(failed)
}
