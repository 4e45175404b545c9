//! Expected tree of an image.

use crate::verify::tree::Tree;
use std::path::PathBuf;

/// What an image has to be.
pub(super) struct Planted {
    pub(super) tree: Tree,
    pub(super) probes: Vec<Probe>,
}

/// A piece of a file.
pub(super) struct Probe {
    pub(super) path: PathBuf,
    /// Unit: bytes.
    pub(super) offset: u64,
    pub(super) bytes: Vec<u8>,
}
