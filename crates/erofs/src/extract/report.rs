//! Options and report of an extraction.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Options of an extraction: selection, attributes, conflicts and limits.
#[derive(Clone, Debug)]
pub struct Options {
    /// Paths to extract, including everything below them. Empty, the default, selects everything.
    pub paths: Vec<Vec<u8>>,
    /// Globs. Only matching entries are extracted, including everything below them. Empty, the default, selects
    /// everything.
    pub include: Vec<String>,
    /// Globs. Matching entries are skipped, including everything below them.
    pub exclude: Vec<String>,
    /// Number of leading components to remove from every path. Entries without further components are skipped. Default:
    /// 0.
    pub strip: usize,
    /// Replaces existing files, by complete ones only, and merges into existing directories. Default: false.
    pub overwrite: bool,
    /// Leaves existing directories above the selected paths as they are, and gives new ones no times. Without it, they are like all
    /// others. Default: false.
    pub keep_above: bool,
    /// With `overwrite`, deletes what the image lacks in and below the selected directories. What is mounted there stays. Default:
    /// false.
    pub delete: bool,
    /// With `overwrite`, keeps existing files whose length, time, mode, owner and attributes match the image. This
    /// resumes a stopped extraction: times are set last, so a file with the right time is complete. Contents are not
    /// compared. Default: false.
    pub update: bool,
    /// Restores the owners of files. Default: only as root.
    pub owners: Option<bool>,
    /// Mode bits that are not restored, such as those of the process's umask. Default: 0.
    pub umask: u32,
    /// Restores extended attributes. Default: true.
    pub xattrs: bool,
    /// Restores times. Default: true.
    pub times: bool,
    /// Reports damage and failures as problems and continues, instead of returning the first one. Default: false.
    pub keep_going: bool,
    /// Number of threads. 0, the default, means one per core.
    pub threads: usize,
    /// Maximum number of names to create. Default: limited only by
    /// [`Limits::names_per_byte`](crate::read::Limits::names_per_byte).
    pub files: u64,
    /// Maximum number of bytes to write, not counting holes. Default: limited only by
    /// [`Limits::content_per_byte`](crate::read::Limits::content_per_byte).
    pub bytes: u64,
    /// Maximum number of problems to keep. Further ones are only counted. Default: 1000.
    pub problems: usize,
    /// Stop flag. If the caller sets it, the extraction ends soon with an error of kind `Interrupted`.
    pub stop: Arc<AtomicBool>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            paths: Vec::new(),
            include: Vec::new(),
            exclude: Vec::new(),
            strip: 0,
            overwrite: false,
            keep_above: false,
            delete: false,
            update: false,
            owners: None,
            umask: 0,
            xattrs: true,
            times: true,
            keep_going: false,
            threads: 0,
            files: u64::MAX,
            bytes: u64::MAX,
            problems: 1000,
            stop: Arc::default(),
        }
    }
}

/// Counters of the extracted entries and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Totals {
    /// Number of regular files, including kept ones.
    pub files: u64,
    /// Number of existing files that were kept because of [`Options::update`]. Included in `files`.
    pub kept: u64,
    /// Number of directories extracted.
    pub directories: u64,
    /// Number of symlinks extracted.
    pub symlinks: u64,
    /// Number of devices, fifos and sockets.
    pub specials: u64,
    /// Number of additional hard links to files.
    pub links: u64,
    /// Number of bytes written.
    pub bytes: u64,
    /// Number of entries deleted because of [`Options::delete`].
    pub deleted: u64,
    /// Number of clusters decoded.
    pub clusters: u64,
}

/// Difference between an extracted entry and the image.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// Path relative to the target.
    pub path: Vec<u8>,
    /// Description of the item that could not be restored, with the reason.
    pub what: String,
}

/// Result of an extraction.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Counters of the entries and bytes extracted.
    pub totals: Totals,
    /// Problems, sorted by path.
    pub problems: Vec<Problem>,
    /// Number of problems discarded in excess of [`Options::problems`].
    pub dropped: u64,
}
