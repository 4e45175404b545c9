//! Objects that are read in ranges, and their pinned identity.

use crate::address::sha256_hex;
use crate::client::link::Link;
use crate::error::Result;
use crate::trace::Traced;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;

/// Future of a method of a trait object.
pub(crate) type Later<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Receiver of the bytes of a range, in their order.
pub(crate) type Sink<'a> = &'a mut (dyn FnMut(&[u8]) + Send);

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

    /// Reads all bytes of a range, and passes them on as they arrive. Those of an answer that breaks off are not passed on
    /// again. `is_urgent`: a reader waits. Otherwise a server that wants fewer requests is not asked again.
    fn read_to<'a>(
        &'a self,
        range: Range<u64>,
        is_urgent: bool,
        sink: Sink<'a>,
    ) -> Later<'a, Result<()>>;

    /// Link to the server.
    fn link(&self) -> &Arc<Link>;

    /// The object in the trace of its client.
    fn traced(&self) -> &Traced;

    /// Number of requests that were repeated after a failure.
    fn retries(&self) -> u64;
}
