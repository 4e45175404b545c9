//! Counters of a remote image.

use std::sync::atomic::AtomicU64;

/// Counters of a remote image since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Size of the image. Unit: bytes.
    pub size: u64,
    /// Bytes of the image that are in the cache.
    pub present_bytes: u64,
    /// Bytes that were fetched.
    pub fetched_bytes: u64,
    /// Bytes that were copied from other images in the cache instead.
    pub shared_bytes: u64,
    /// Bytes that are queued or requested ahead of readers.
    pub pending_bytes: u64,
    /// Requests for ranges, without repeated and hedged ones.
    pub requests: u64,
    /// Reads that needed bytes which were neither there nor requested.
    pub demand_misses: u64,
    /// Reads that waited for the network, also for bytes that were requested before.
    pub demand_waits: u64,
    /// Requests that were sent a second time because the answer was late.
    pub hedged_requests: u64,
    /// Requests that were repeated after a failure.
    pub retries: u64,
    /// Requests that failed with all their repetitions.
    pub failed_requests: u64,
}

/// Counters of the fetcher and of reads.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) fetched_bytes: AtomicU64,
    pub(crate) shared_bytes: AtomicU64,
    pub(crate) requests: AtomicU64,
    pub(crate) misses: AtomicU64,
    pub(crate) waits: AtomicU64,
    pub(crate) hedged: AtomicU64,
    pub(crate) failed: AtomicU64,
}
