//! Profile that comes with an image: a referrer of its manifest, or a file beside it.

use crate::address::Address;
use crate::beside::{PROFILE, file};
use crate::error::Result;
use crate::location::Location;
use crate::options::Options;
use crate::registry::{media, referrers};
use crate::resolve;
use crate::runtime::runtime;

/// Longest profile that is fetched. Its lines take up to nine times as much memory. Unit: bytes.
const LEN_MAX: usize = 4 << 20;

/// Fetches the profile of the image at a location: a referrer in a registry, else `URL.profile`. `None` if there is none.
///
/// The profile is a hint, so it is not verified. A file is cut after 4 MiB.
///
/// # Errors
/// Kinds of [`Error`](crate::Error) other than that the object does not exist.
pub fn profile(location: &Location, options: &Options) -> Result<Option<Vec<u8>>> {
    let Address::Oci(reference) = &location.address else {
        return beside(location, options);
    };
    let find = async {
        let registry = resolve::registry(location, reference, options).await?;
        // The tag may have moved since the image was opened.
        let manifest = resolve::found_manifest(location, reference, &registry, options).await?;
        let digest = &manifest.digest;
        let kept = referrers::kept_contents(&registry, digest, media::PROFILE, LEN_MAX).await?;
        match kept {
            Some(kept) => Ok(kept),
            None if location.connections().is_offline() => Ok(Vec::new()),
            None => referrers::contents(&registry, digest, media::PROFILE, LEN_MAX).await,
        }
    };
    Ok(runtime()?.block_on(find)?.into_iter().next())
}

/// Profile that the manifest of an image states, and whether it is all of the recording. Nothing is requested: `None` unless the
/// image in a registry was found before. It is a hint, as [`profile`] is, and at most 64 KiB long.
pub fn stated_profile(location: &Location) -> Option<(Vec<u8>, bool)> {
    let Address::Oci(reference) = &location.address else {
        return None;
    };
    let manifest = location.connections().manifest(&reference.version)?;
    let stated = manifest.object["annotations"][media::RECORDING].as_str()?;
    let is_whole = !stated.ends_with(media::RECORDING_CONTINUED);
    (stated.len() <= media::RECORDING_MAX).then(|| (stated.as_bytes().to_vec(), is_whole))
}

/// Profile in a file beside an object. It is looked for once for each version of the object.
fn beside(location: &Location, options: &Options) -> Result<Option<Vec<u8>>> {
    let identity = location.connections().object(&location.address);
    let documents = identity.and_then(|[origin, validator, size]| {
        resolve::documents(options, &["object", &origin, &validator, &size])
    });
    let kept = documents
        .as_ref()
        .and_then(|documents| documents.get("profile"));
    // The first byte tells a profile from none.
    match kept.as_deref().and_then(<[u8]>::split_first) {
        Some((1, profile)) => return Ok(Some(profile.to_vec())),
        Some(_) => return Ok(None),
        None if location.connections().is_offline() => return Ok(None),
        None => {}
    }
    let found = file(location, PROFILE, LEN_MAX, options)?;
    if let Some(documents) = documents {
        let mut bytes = vec![u8::from(found.is_some())];
        bytes.extend(found.iter().flatten());
        documents.put("profile", &bytes);
    }
    Ok(found)
}
