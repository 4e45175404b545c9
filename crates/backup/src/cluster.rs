//! Clusters, the units in which ranges are encoded.

/// Block size of a store and of its images. Unit: bytes.
pub(crate) const BLOCK: usize = 4096;
/// Longest range, and longest group. Unit: bytes.
pub(crate) const RANGE_MAX: u64 = 4 << 20;

/// Cluster of a range. Those of a range follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cluster {
    /// Bytes of the range that it holds.
    pub(crate) content: u32,
    /// Its length in blocks.
    pub(crate) blocks: u16,
    pub(crate) is_stored: bool,
}

/// Number of blocks of a range, if clusters can be those of one.
pub(crate) fn blocks_of(clusters: &[Cluster]) -> Option<u32> {
    let content: u64 = clusters.iter().map(|c| u64::from(c.content)).sum();
    let blocks: u64 = clusters.iter().map(|c| u64::from(c.blocks)).sum();
    let is_bounded = content <= RANGE_MAX && blocks * BLOCK as u64 <= 2 * RANGE_MAX;
    // Fits: it was compared.
    is_bounded.then_some(blocks as u32)
}
