//! Options and report of an extraction.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// What to extract, and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// Only these paths, with all below them. Empty, the default: everything.
    pub paths: Vec<Vec<u8>>,
    /// Only what matches one of these globs, with all below it. Empty, the default: everything.
    pub include: Vec<String>,
    /// Nothing that matches one of these globs, and nothing below it.
    pub exclude: Vec<String>,
    /// Directory names that are taken off the front of every path. What has no more is left out. Default: 0.
    pub strip: usize,
    /// Replace files that exist, and go on in directories that do. Default: no.
    pub overwrite: bool,
    /// With that, leave files alone that have length, time, mode, owner and attributes of the image's: what an extraction that
    /// was stopped has completed, since times come last. Contents are not compared. Default: no.
    pub update: bool,
    /// Give files their owners. Default: only as root.
    pub owners: Option<bool>,
    /// Set extended attributes. Default: yes.
    pub xattrs: bool,
    /// Set times. Default: yes.
    pub times: bool,
    /// Go on after damage or failure, and report it, instead of ending there. Default: no.
    pub keep_going: bool,
    /// Threads. 0, the default: one for each core.
    pub threads: usize,
    /// Most names that may be made. Default: no limit but [`Limits::names_per_byte`](crate::read::Limits::names_per_byte).
    pub files: u64,
    /// Most bytes that may be written, holes not counted. Default: no limit but
    /// [`Limits::content_per_byte`](crate::read::Limits::content_per_byte).
    pub bytes: u64,
    /// Problems that are kept; further ones are only counted. Default: 1000.
    pub problems: usize,
    /// Set from outside, it ends the extraction soon, with an error of kind `Interrupted`. Default: nobody does.
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
            update: false,
            owners: None,
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

/// What was made so far, or in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Totals {
    /// Regular files.
    pub files: u64,
    /// Files among them that were there, with [`Options::update`].
    pub kept: u64,
    /// Directories.
    pub directories: u64,
    /// Symlinks.
    pub symlinks: u64,
    /// Devices, fifos and sockets.
    pub specials: u64,
    /// Further names of files.
    pub links: u64,
    /// Bytes written. Unit: bytes.
    pub bytes: u64,
    /// Clusters decoded.
    pub clusters: u64,
}

/// Something that is not as in the image.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// Path below the target.
    pub path: Vec<u8>,
    /// What could not be restored, and why.
    pub what: String,
}

/// What an extraction did.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// What was made.
    pub totals: Totals,
    /// What could not be restored, by path.
    pub problems: Vec<Problem>,
    /// Problems beyond [`Options::problems`], which are not kept.
    pub dropped: u64,
}
