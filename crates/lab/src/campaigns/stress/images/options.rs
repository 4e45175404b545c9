//! Options of a campaign over images, and its judges.

use super::super::rounds;
use crate::engines::Found;
use std::fmt;
use std::path::PathBuf;

/// Build images of random trees with random settings, and verify each with several judges
///
/// Judges are the kernel, our own reader, fsck.erofs, and builds with other numbers of threads. Most trees are then changed up to
/// three times, and get a patch or an image based on the first. On a wrong result, prints the seed and the commands, keeps tree
/// and images, and exits with 1.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Number of cases (default: 200, or unlimited with --minutes)
    #[arg(long, value_name = "N")]
    pub cases: Option<u64>,
    /// Use only these judges. Trees and settings are unaffected
    #[arg(long, value_name = "JUDGE")]
    pub only: Vec<Judge>,
    /// Folder, seed, time and programs.
    #[command(flatten)]
    pub common: rounds::Options,
}

/// Programs of a campaign.
#[derive(Clone, Debug)]
pub struct Programs {
    /// Path of the program `tuff`, which is tested.
    pub tuff: PathBuf,
    /// Program for [`Judge::Fsck`]. None skips that judge.
    pub fsck: Option<Found>,
}

/// Method that verifies an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Judge {
    /// Build with another number of threads, which must give the same bytes
    Threads,
    /// Build from sources that are equivalent to the tree: the image itself, a tar, or several sources
    Sources,
    /// Check by `tuff check`
    Check,
    /// Extraction by `tuff extract`
    Extract,
    /// Mount by `tuff mount`
    Mount,
    /// Mount by the running kernel
    Kernel,
    /// Check and extraction by `fsck.erofs`
    Fsck,
}

impl fmt::Display for Judge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Judge::Threads => "other thread counts",
            Judge::Sources => "other sources",
            Judge::Check => "tuff check",
            Judge::Extract => "tuff extract",
            Judge::Mount => "tuff mount",
            Judge::Kernel => "the kernel",
            Judge::Fsck => "fsck.erofs",
        })
    }
}
