//! Options and report of a check.

use super::finding::{Finding, Severity};

/// What to check.
#[derive(Clone, Debug)]
pub struct Options {
    /// Read all data and decode all clusters, not only the structures. Default: true.
    pub data: bool,
    /// Find out how many LZ4 clusters can be decoded in place. Default: false.
    pub in_place: bool,
    /// Compare digests that files have as an attribute with their contents, which are read once more for that. Default: false.
    pub fingerprints: bool,
    /// Threads that decode. 0, the default: one for each core.
    pub threads: usize,
    /// Findings that are kept; further ones are only counted. Default: 10,000.
    pub findings: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            data: true,
            in_place: false,
            fingerprints: false,
            threads: 0,
            findings: 10_000,
        }
    }
}

impl Options {
    pub(super) fn worker_count(&self) -> usize {
        match self.threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            n => n,
        }
    }
}

/// What was checked so far, or in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Totals {
    /// Inodes, each counted once, hidden ones too.
    pub inodes: u64,
    /// Directories among them.
    pub directories: u64,
    /// Sizes of all regular files, each inode counted once. Unit: bytes.
    pub file_bytes: u64,
    /// Clusters decoded, each once.
    pub clusters: u64,
    /// Length of these clusters in the image. Unit: bytes.
    pub encoded_bytes: u64,
    /// What they decode to. Unit: bytes.
    pub decoded_bytes: u64,
    /// Bytes read that are not encoded. Unit: bytes.
    pub raw_bytes: u64,
    /// LZ4 clusters among the decoded ones.
    pub lz4_clusters: u64,
    /// Those that can be decoded in place, if that was asked for.
    pub lz4_in_place: u64,
}

/// What a check found.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Broken rules, the worst first, then by place.
    pub findings: Vec<Finding>,
    /// Findings beyond [`Options::findings`], which are not kept.
    pub dropped: u64,
    /// What was checked.
    pub totals: Totals,
}

impl Report {
    /// The number of findings of a severity among those kept.
    pub fn count(&self, severity: Severity) -> usize {
        let of = |f: &&Finding| f.severity == severity;
        self.findings.iter().filter(of).count()
    }

    /// True if there is nothing but notes.
    pub fn is_clean(&self) -> bool {
        self.dropped == 0 && self.findings.iter().all(|f| f.severity == Severity::Note)
    }
}
