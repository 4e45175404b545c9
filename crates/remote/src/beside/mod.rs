//! Signatures that come with an image: among the referrers of a manifest, or in files beside it.

pub(crate) mod profile;
pub(crate) mod statements;

use crate::address::{Address, sha256_hex};
use crate::error::{Error, Kind, Result};
use crate::location::Location;
use crate::options::Options;
use crate::registry::{self, Registry, media, referrers};
use crate::resolve;
use crate::runtime::runtime;
use crate::source;
use crate::trace::Reason;
use std::io::Read;
use std::path::Path;
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
    options: &Options,
) -> Result<(Location, Option<Root>)> {
    let place = location.to_string();
    let refused = |what: &str| {
        let by = certificate.place();
        let what = format_args!("{what}, so it is not trusted by {by}");
        Error::new(Kind::Untrusted, &place, what)
    };
    let no_root = "the image comes without a root hash that a signature could be of";
    let wrong_root = "its root hash is not 64 hexadecimal digits, which a signature could be of";
    let Address::Oci(reference) = &location.address else {
        let root = file(location, ROOT_HASH, SIGNATURE_MAX, options)?;
        let root = root.ok_or_else(|| refused(no_root))?;
        let root = registry::root(String::from_utf8_lossy(&root).trim());
        let root = root.ok_or_else(|| refused(wrong_root))?;
        let signature = file(location, ROOT_SIGNATURE, SIGNATURE_MAX, options)?;
        let signatures: Vec<_> = signature.into_iter().collect();
        check(certificate, &[root], &signatures).map_err(refused)?;
        return Ok((location.clone(), Some(root)));
    };
    let find = async {
        let registry = resolve::registry(location, reference, options).await?;
        let manifest = resolve::manifest(location, reference, &registry, options).await?;
        let images = registry::images(&registry, &manifest.object)?;
        let is_one = matches!(&images[..], [image] if image.devices.is_empty());
        let lookup = Lookup {
            location,
            registry: &registry,
            subject: &manifest.digest,
        };
        if !is_one {
            let digest = sha256_hex(&manifest.digest).and_then(registry::root);
            let is_signed = |signatures: &[Vec<u8>]| {
                digest.is_some_and(|digest| check(certificate, &[digest], signatures).is_ok())
            };
            let found = lookup.signatures(media::MANIFEST_SIGNATURE, &is_signed);
            if !is_signed(&found.await?) {
                return Err(refused(
                    "the manifest, which combines layers and devices, has no signature by the certificate",
                ));
            }
        }
        let count = images.len();
        let layers = images
            .into_iter()
            .flat_map(|image| std::iter::once(image.image).chain(image.devices));
        let roots: Option<Vec<String>> = layers.map(|layer| layer.root_hash).collect();
        let roots = roots.ok_or_else(|| refused(no_root))?;
        let roots: Option<Vec<Root>> = roots.iter().map(|digits| registry::root(digits)).collect();
        let roots = roots.ok_or_else(|| refused(wrong_root))?;
        let is_signed = |found: &[Vec<u8>]| check(certificate, &roots, found).is_ok();
        let found = lookup.signatures(media::ROOT_SIGNATURE, &is_signed).await?;
        check(certificate, &roots, &found).map_err(refused)?;
        let root = roots.first().copied().filter(|_| count == 1);
        Ok((location.by_digest(reference, manifest.digest.clone()), root))
    };
    runtime()?.block_on(find)
}

/// Checks that a certificate has signed all root hashes, with any of the signatures.
fn check(
    certificate: &Certificate,
    roots: &[Root],
    signatures: &[Vec<u8>],
) -> Result<(), &'static str> {
    let is_signed = |root: &Root| {
        let mut signatures = signatures.iter();
        signatures.any(|signature| certificate.has_signed(root, signature))
    };
    match () {
        () if signatures.is_empty() => Err("the image comes without a signature"),
        () if !roots.iter().all(is_signed) => {
            Err("no signature of the root hash is by the certificate")
        }
        () => Ok(()),
    }
}

/// Signatures of the manifest of an image.
struct Lookup<'a> {
    location: &'a Location,
    registry: &'a Registry,
    /// Digest of the manifest.
    subject: &'a str,
}

impl Lookup<'_> {
    /// Signatures of a kind: those in the cache if they are enough, or else those that the registry has.
    async fn signatures(
        &self,
        kind: &str,
        are_enough: &dyn Fn(&[Vec<u8>]) -> bool,
    ) -> Result<Vec<Vec<u8>>> {
        let (registry, subject) = (self.registry, self.subject);
        let kept = referrers::kept_contents(registry, subject, kind, SIGNATURE_MAX).await;
        match kept {
            Ok(Some(kept)) if are_enough(&kept) => Ok(kept),
            _ if self.location.connections().is_offline() => Err(resolve::unsigned(self.location)),
            _ => referrers::contents(registry, subject, kind, SIGNATURE_MAX).await,
        }
    }
}

/// Reads a small file beside an image. `None` if there is none.
pub(crate) fn file(
    location: &Location,
    suffix: &str,
    limit: usize,
    options: &Options,
) -> Result<Option<Vec<u8>>> {
    let Some(beside) = location.with_suffix(suffix) else {
        return Ok(None);
    };
    if let Some(path) = beside.local_path() {
        return local(path, limit);
    }
    // Such a file is never opened without its server.
    let options = Options {
        offline: false,
        ..options.clone()
    };
    let opened = source::open(&beside, limit as u64, true, &options);
    match runtime()?.block_on(Reason::Beside.scope(opened)) {
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
