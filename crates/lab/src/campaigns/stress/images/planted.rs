//! Expected tree of an image.

use crate::verify::tree::Tree;
use std::path::PathBuf;

/// Expected tree of an image, and bytes to probe.
pub(super) struct Planted {
    pub(super) tree: Tree,
    pub(super) probes: Vec<Probe>,
}

/// Byte range of a file with its expected content.
pub(super) struct Probe {
    pub(super) path: PathBuf,
    /// Start of the range. Unit: bytes.
    pub(super) offset: u64,
    pub(super) bytes: Vec<u8>,
}
