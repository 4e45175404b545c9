//! Objects that are read in ranges, and their pinned identity.

use crate::error::Result;
use crate::location::sha256_hex;
use std::ops::Range;
use std::pin::Pin;
use std::time::Duration;

/// Future of a method of a trait object.
pub(crate) type Later<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Identity of an immutable object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    /// Validator: a digest, an ETag or a time of modification, with its kind.
    pub(crate) validator: String,
    /// Place that the validator belongs to, with all that selects its content: scheme, host, port, user, path and query, or
    /// the repository. Never shown, because a query may hold a signature.
    pub(crate) origin: String,
    /// Size of the object. Unit: bytes.
    pub(crate) size: u64,
}

impl Identity {
    /// True if the validator is the SHA-256 digest of the whole object.
    pub(crate) fn is_digest(&self) -> bool {
        sha256_hex(&self.validator).is_some()
    }
}

/// Ranges of one immutable object.
pub(crate) trait Object: Send + Sync {
    /// Identity, which is the same for the life of this value.
    fn identity(&self) -> &Identity;

    /// Reads all bytes of a range. Fails with `Changed` if the object is another one.
    fn read(&self, range: Range<u64>) -> Later<'_, Result<Vec<u8>>>;

    /// Shortest recent time from a request to the start of its answer. `None` before the first answer.
    fn round_trip(&self) -> Option<Duration>;

    /// Number of requests that were repeated after a failure.
    fn retries(&self) -> u64;
}
