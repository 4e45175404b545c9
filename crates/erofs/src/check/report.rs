//! Options and report of a check.

use super::finding::{Finding, Severity};

/// Options of a check.
#[derive(Clone, Debug)]
pub struct Options {
    /// Read all data and decode all clusters. Default: true.
    pub data: bool,
    /// Count the LZ4 clusters that can be decoded in place. Default: false.
    pub in_place: bool,
    /// Compare fingerprints with contents, which reads all these files once more. Default: false.
    pub fingerprints: bool,
    /// Number of threads that decode. 0, the default, uses all available CPUs.
    pub threads: usize,
    /// Maximum number of findings in the report. Further ones are only counted. Default: 10,000.
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

/// Counters of a check, for progress and for the report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Totals {
    /// Inodes, each counted once, hidden inodes included.
    pub inodes: u64,
    /// Directories among the inodes.
    pub directories: u64,
    /// Sizes in bytes of all regular files, each inode counted once.
    pub file_bytes: u64,
    /// Decoded clusters, each counted once.
    pub clusters: u64,
    /// Length in bytes of these clusters in the image.
    pub encoded_bytes: u64,
    /// Decoded length in bytes of these clusters.
    pub decoded_bytes: u64,
    /// Raw data in bytes.
    pub raw_bytes: u64,
    /// LZ4 clusters among the decoded ones.
    pub lz4_clusters: u64,
    /// LZ4 clusters that can be decoded in place, if requested.
    pub lz4_in_place: u64,
}

/// Report of a check.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Findings by severity, the most severe first, then by place.
    pub findings: Vec<Finding>,
    /// Number of findings over [`Options::findings`].
    pub dropped: u64,
    /// Counters at the end of the check.
    pub totals: Totals,
}

impl Report {
    /// Returns the number of kept findings of a severity.
    pub fn count(&self, severity: Severity) -> usize {
        let of = |f: &&Finding| f.severity == severity;
        self.findings.iter().filter(of).count()
    }

    /// Returns true if all findings are notes.
    pub fn is_clean(&self) -> bool {
        self.dropped == 0 && self.findings.iter().all(|f| f.severity == Severity::Note)
    }
}
