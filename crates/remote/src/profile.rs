//! Profile that lies beside an image, under its name with the suffix `.profile`.

use crate::error::{Error, Kind, Result};
use crate::location::Location;
use crate::options::Options;
use crate::runtime::runtime;
use crate::source;

/// Longest profile that is fetched. Unit: bytes.
const LEN_MAX: u64 = 16 << 20;

/// Fetches the profile of the image at a location: `URL.profile`. `None` if there is none.
///
/// The profile is a hint, so it is not verified. It is cut after 16 MiB.
///
/// # Errors
/// Kinds of [`Error`] other than that the object does not exist.
pub fn profile(location: &Location, options: &Options) -> Result<Option<Vec<u8>>> {
    let Some(location) = location.with_suffix(".profile") else {
        return Ok(None);
    };
    let fetched = match location.local_path() {
        Some(path) => std::fs::read(path).map_err(|e| match e.kind() {
            std::io::ErrorKind::NotFound => Error::missing(&location, e),
            _ => Error::new(Kind::Unavailable, &location, e),
        }),
        None => {
            let opened = source::open(&location, LEN_MAX, true, options.retry);
            runtime()?.block_on(opened).map(|opened| opened.head)
        }
    };
    match fetched {
        Ok(bytes) => Ok(Some(bytes)),
        Err(e) if e.is_missing() => Ok(None),
        Err(e) => Err(e),
    }
}
