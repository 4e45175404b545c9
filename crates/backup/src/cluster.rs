//! Clusters, the units in which ranges are encoded.

/// Block size of a store and of its images. Unit: bytes.
pub(crate) const BLOCK: usize = 4096;

/// Cluster of a range. Those of a range follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cluster {
    /// Bytes of the range that it holds.
    pub(crate) content: u32,
    /// Its length in blocks.
    pub(crate) blocks: u16,
    pub(crate) is_stored: bool,
}
