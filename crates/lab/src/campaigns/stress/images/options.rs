//! Options of a campaign over images.

use crate::engines::Found;
use std::path::PathBuf;
use std::time::Duration;

/// Extent, judges and programs of a campaign.
#[derive(Clone, Debug)]
pub struct Options {
    /// Seed of the first case. Each case uses the next seed.
    pub seed: u64,
    /// Number of cases. None means that only `time` limits them.
    pub cases: Option<u64>,
    /// Time after which no case starts. None means no limit.
    pub time: Option<Duration>,
    /// Judges that verify each image.
    pub judges: Vec<Judge>,
    /// Path of the program `tuff`, which is tested.
    pub tuff: PathBuf,
    /// Program for [`Judge::Fsck`]. None skips that judge.
    pub fsck: Option<Found>,
}

/// Method that verifies an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Judge {
    /// Build with another number of threads, which must give the same bytes.
    Threads,
    /// Build from sources that are equivalent to the tree: the image itself, a tar, or several sources.
    Sources,
    /// Check by `tuff check`.
    Check,
    /// Extraction by `tuff extract`.
    Extract,
    /// Mount by `tuff mount`.
    Mount,
    /// Mount by the running kernel.
    Kernel,
    /// Check and extraction by `fsck.erofs`.
    Fsck,
}
