//! Profile that comes with an image: a referrer of its manifest, or a file beside it.

use crate::beside::{PROFILE, file};
use crate::error::Result;
use crate::location::{Address, Location};
use crate::options::Options;
use crate::registry::{self, Registry, media, referrers};
use crate::runtime::runtime;
use std::sync::Arc;

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
        return file(location, PROFILE, LEN_MAX, options.retry);
    };
    let place = location.to_string();
    let registry = Registry::new(Arc::default(), reference, &place, options.retry)?;
    let find = async {
        let manifest = registry::image(&registry, &reference.version).await?;
        referrers::contents(&registry, &manifest.digest, media::PROFILE, LEN_MAX).await
    };
    Ok(runtime()?.block_on(find)?.into_iter().next())
}
