//! Heads and reservations of the seven logs.

use crate::disk::checkpoint::LogMarks;

/// State of the logs. Arrays are indexed by [`Log::index`](crate::Log::index); offsets count blocks from the start of an area.
#[derive(Default)]
pub(crate) struct Logs {
    /// Positions of each log.
    pub(crate) marks: [LogMarks; 7],
    /// Offset up to which the device has reserved space for each log.
    pub(crate) preallocated: [u64; 7],
    /// Offset in the warm node log up to which the device has written zeros, so that flushing later writes is cheap.
    pub(crate) prepared: u64,
    /// Offset up to which each log was searched for empty zones.
    pub(crate) zones_scanned: [u64; 7],
}

impl Logs {
    /// Offset of the next block of each log.
    pub(crate) fn heads(&self) -> [u64; 7] {
        self.marks.map(|marks| marks.head)
    }

    /// Number of blocks that the fullest log may still take before the next checkpoint.
    pub(crate) fn remaining(&self) -> u64 {
        let remaining = self.marks.iter().map(|marks| marks.limit - marks.head);
        remaining.min().unwrap_or(0)
    }
}
