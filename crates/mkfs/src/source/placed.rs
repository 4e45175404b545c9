//! Trees whose data lies in the bases of the build already.

use super::Entry;
use crate::Result;
use std::fmt;

/// Tree whose data lies in the bases of the build: nothing of it is read or written.
///
/// Such a tree is the only source, and every file of it is placed as [`data`](Self::data) says.
pub trait PlacedTree: fmt::Debug + Send + Sync {
    /// Name of the tree in messages.
    fn name(&self) -> String;

    /// Calls `take` with each entry, parents first. The content of a file with data is `Content::Range`, whose offset is the
    /// key of its data.
    ///
    /// # Errors
    /// Those of `take`, and of reading the tree.
    fn each(&self, take: &mut dyn FnMut(Entry) -> Result<()>) -> Result<()>;

    /// Returns the place of a file's data.
    ///
    /// # Errors
    /// Those of finding it.
    fn data(&self, key: u64) -> Result<PlacedData>;
}

/// Place of a file's data.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlacedData {
    /// Clusters of its own, in order. All but the last decode to a block or more.
    pub clusters: Vec<PlacedCluster>,
    /// End of the file behind them, or the whole file: a part of a group.
    pub tail: Option<PlacedPart>,
}

/// Part of a group of clusters. Groups make up the packed inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacedPart {
    /// Key of the group. Equal keys are equal groups. Keys are ordered as the groups are to be.
    pub group: u32,
    /// Start of the part in the group. Unit: bytes.
    pub offset: u64,
    /// Length of the part. Unit: bytes.
    pub len: u64,
    /// Start of the first of `clusters` in the group. Unit: bytes.
    pub start: u64,
    /// Clusters of the group that hold the part, in order, each of which decodes to a block or more.
    pub clusters: Vec<PlacedCluster>,
}

/// Cluster in a base.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacedCluster {
    /// Index of the base in `DedupeOptions::bases`.
    pub base: u16,
    /// First byte in the base, a multiple of the block size.
    pub pos: u64,
    /// Length in the base, a multiple of the block size. Unit: bytes.
    pub len: u32,
    /// Bytes of the file that the cluster holds.
    pub content: u32,
    /// Number of the algorithm; `None` if the cluster is stored.
    pub algorithm: Option<u8>,
}

/// Bytes of positions that each group has. Groups are shorter.
pub(crate) const GROUP_SPACE: u64 = 1 << 24;
