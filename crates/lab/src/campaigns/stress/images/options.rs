//! Options of a campaign over images.

use crate::engines::Found;
use std::path::PathBuf;
use std::time::Duration;

/// How much, and with what.
#[derive(Clone, Debug)]
pub struct Options {
    /// Fixes every case.
    pub seed: u64,
    /// Cases; without a number as many as there is time for.
    pub cases: Option<u64>,
    /// No case begins later.
    pub time: Option<Duration>,
    /// Who judges.
    pub judges: Vec<Judge>,
    /// The program under test.
    pub tuff: PathBuf,
    /// Another judge.
    pub fsck: Option<Found>,
}

/// Who judges an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Judge {
    /// A build on another number of threads.
    Threads,
    /// A build from the image, from a tar, or from several sources that say the same as the tree.
    Sources,
    /// `tuff check`.
    Check,
    /// `tuff extract`.
    Extract,
    /// `tuff mount`.
    Mount,
    /// The running kernel.
    Kernel,
    /// `fsck.erofs`.
    Fsck,
}
