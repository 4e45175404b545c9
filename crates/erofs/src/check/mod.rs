//! Checking images: every structure, every rule, every cluster once, on all cores.
//!
//! ```text
//!  walk    one thread: directories, inodes, attributes, indexes      walk.rs near.rs inode.rs xattr.rs superblock.rs
//!    └► jobs    clusters not seen yet, sorted by position            data.rs, marks.rs
//!         └► workers   fetch, see whether it decodes, forget         work.rs
//! files   all cores: what digests that files have say, if asked     fingerprint.rs
//! ```
//!
//! A finding never stops the check: what hangs on a broken structure is left out, everything else goes on.
//!
//! Invariants:
//!
//! * Memory does not grow with the number of files, only by some bytes per block of metadata and four bytes per block
//!   of data, for the map that says what belongs to what.
//! * The findings do not depend on the number of threads.

mod data;
mod finding;
mod fingerprint;
mod inode;
pub(crate) mod marks;
mod near;
mod superblock;
mod walk;
mod work;
mod xattr;

pub use finding::{Finding, Rule, Severity};

use crate::read::Image;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::atomic::{Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use std::sync::{Mutex, PoisonError};
use std::thread::Thread;
use std::time::Duration;

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
    fn worker_count(&self) -> usize {
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

/// Checks an image, which is best opened without
/// [`verify_checksum`](crate::read::OpenOptions::verify_checksum): a wrong one is a finding then.
///
/// `progress` is called now and then by the calling thread, and once at the end.
pub fn check(image: &Image, options: &Options, mut progress: impl FnMut(&Totals)) -> Report {
    let shared = Shared::new(options);
    let marks = std::thread::scope(|scope| {
        let jobs = data::Jobs::start(image, options, &shared, scope);
        let mut walk = walk::Walk::new(image, &shared, jobs, &mut progress);
        walk.run();
        let marks = walk.finish();
        while shared.workers.load(Acquire) > 0 {
            std::thread::park_timeout(Duration::from_millis(100));
            progress(&shared.totals.get());
        }
        marks
    });
    superblock::check(image, &shared, &marks);
    if options.fingerprints {
        fingerprint::check(image, options.worker_count(), &shared);
    }
    let report = shared.into_report();
    progress(&report.totals);
    report
}

/// What all threads of a check write to.
struct Shared {
    findings: Mutex<Vec<Finding>>,
    limit: usize,
    dropped: AtomicU64,
    totals: AtomicTotals,
    /// Items of work that are not yet done.
    items: AtomicUsize,
    /// Workers that are not yet done, and who waits for them.
    workers: AtomicUsize,
    waiting: Thread,
}

/// Counts as a worker as long as it lives.
struct AtWork<'a>(&'a Shared);

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        self.0.workers.fetch_sub(1, Release);
        self.0.waiting.unpark();
    }
}

#[derive(Default)]
struct AtomicTotals {
    inodes: AtomicU64,
    directories: AtomicU64,
    file_bytes: AtomicU64,
    clusters: AtomicU64,
    encoded_bytes: AtomicU64,
    decoded_bytes: AtomicU64,
    raw_bytes: AtomicU64,
    lz4_clusters: AtomicU64,
    lz4_in_place: AtomicU64,
}

impl AtomicTotals {
    fn add(&self, more: &Totals) {
        self.inodes.fetch_add(more.inodes, Relaxed);
        self.directories.fetch_add(more.directories, Relaxed);
        self.file_bytes.fetch_add(more.file_bytes, Relaxed);
        self.clusters.fetch_add(more.clusters, Relaxed);
        self.encoded_bytes.fetch_add(more.encoded_bytes, Relaxed);
        self.decoded_bytes.fetch_add(more.decoded_bytes, Relaxed);
        self.raw_bytes.fetch_add(more.raw_bytes, Relaxed);
        self.lz4_clusters.fetch_add(more.lz4_clusters, Relaxed);
        self.lz4_in_place.fetch_add(more.lz4_in_place, Relaxed);
    }

    fn get(&self) -> Totals {
        Totals {
            inodes: self.inodes.load(Relaxed),
            directories: self.directories.load(Relaxed),
            file_bytes: self.file_bytes.load(Relaxed),
            clusters: self.clusters.load(Relaxed),
            encoded_bytes: self.encoded_bytes.load(Relaxed),
            decoded_bytes: self.decoded_bytes.load(Relaxed),
            raw_bytes: self.raw_bytes.load(Relaxed),
            lz4_clusters: self.lz4_clusters.load(Relaxed),
            lz4_in_place: self.lz4_in_place.load(Relaxed),
        }
    }
}

impl Shared {
    fn new(options: &Options) -> Self {
        Self {
            findings: Mutex::new(Vec::new()),
            limit: options.findings,
            dropped: AtomicU64::new(0),
            totals: AtomicTotals::default(),
            items: AtomicUsize::new(0),
            workers: AtomicUsize::new(0),
            waiting: std::thread::current(),
        }
    }

    /// Marks the end of a worker that [`workers`](Self::workers) counted when it was started.
    fn worker(&self) -> AtWork<'_> {
        AtWork(self)
    }

    fn add(&self, severity: Severity, rule: Rule, place: impl ToString, what: impl ToString) {
        let mut findings = self.findings.lock().unwrap_or_else(PoisonError::into_inner);
        if findings.len() >= self.limit {
            self.dropped.fetch_add(1, Relaxed);
            return;
        }
        findings.push(Finding {
            severity,
            rule,
            place: place.to_string(),
            what: what.to_string(),
        });
    }

    fn error(&self, rule: Rule, place: impl ToString, what: impl ToString) {
        self.add(Severity::Error, rule, place, what);
    }

    fn warning(&self, rule: Rule, place: impl ToString, what: impl ToString) {
        self.add(Severity::Warning, rule, place, what);
    }

    /// An error of a decoder as a finding. Failures of the host and limits are their own rules.
    fn failed(&self, rule: Rule, path: &str, error: &crate::Error) {
        let rule = match error {
            crate::Error::Io(..) => Rule::Io,
            crate::Error::Limit(_) => Rule::Limit,
            _ => rule,
        };
        let place = match (path, error.place()) {
            (path, "") => path.to_owned(),
            ("", place) => place.to_owned(),
            (path, place) => format!("{path}: {place}"),
        };
        let what = match error {
            crate::Error::Io(_, e) => format!("{}: {e}", error.what()),
            _ => error.what().to_owned(),
        };
        self.error(rule, place, what);
    }

    fn into_report(self) -> Report {
        let findings = self.findings.into_inner();
        let mut findings = findings.unwrap_or_else(PoisonError::into_inner);
        findings.sort_by(|a, b| {
            (b.severity.cmp(&a.severity))
                .then_with(|| a.place.cmp(&b.place))
                .then_with(|| a.cmp(b))
        });
        Report {
            findings,
            dropped: self.dropped.into_inner(),
            totals: self.totals.get(),
        }
    }
}
