//! What a server did so far.

/// Totals since the start of a [`Server`](super::Server), for people and for the lab.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Requests that were answered.
    pub reads: u64,
    /// Requests that failed.
    pub errors: u64,
    /// Unit: bytes.
    pub returned_bytes: u64,
}
