//! State that the threads of a check share.

use super::finding::{Finding, Rule, Severity};
use super::report::{Options, Report, Totals};
use crate::Place;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::atomic::{Ordering::Relaxed, Ordering::Release};
use std::sync::{Mutex, PoisonError};
use std::thread::Thread;

/// Shared state of the walk and the workers.
pub(super) struct Shared {
    pub(super) findings: Mutex<Vec<Finding>>,
    pub(super) limit: usize,
    pub(super) dropped: AtomicU64,
    pub(super) totals: AtomicTotals,
    /// Number of unfinished items of work.
    pub(super) items: AtomicUsize,
    /// Number of running workers.
    pub(super) workers: AtomicUsize,
    pub(super) waiting: Thread,
}

/// Guard that counts a running worker.
pub(super) struct AtWork<'a>(&'a Shared);

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        self.0.workers.fetch_sub(1, Release);
        self.0.waiting.unpark();
    }
}

#[derive(Default)]
pub(super) struct AtomicTotals {
    pub(super) inodes: AtomicU64,
    pub(super) directories: AtomicU64,
    pub(super) file_bytes: AtomicU64,
    pub(super) clusters: AtomicU64,
    pub(super) encoded_bytes: AtomicU64,
    pub(super) decoded_bytes: AtomicU64,
    pub(super) raw_bytes: AtomicU64,
    pub(super) lz4_clusters: AtomicU64,
    pub(super) lz4_in_place: AtomicU64,
}

impl AtomicTotals {
    pub(super) fn add(&self, more: &Totals) {
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

    pub(super) fn get(&self) -> Totals {
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
    pub(super) fn new(options: &Options) -> Self {
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

    /// Returns the guard of a worker that [`workers`](Self::workers) counts already.
    pub(super) fn worker(&self) -> AtWork<'_> {
        AtWork(self)
    }

    pub(super) fn add(
        &self,
        severity: Severity,
        rule: Rule,
        place: impl ToString,
        what: impl ToString,
    ) {
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

    pub(super) fn error(&self, rule: Rule, place: impl ToString, what: impl ToString) {
        self.add(Severity::Error, rule, place, what);
    }

    pub(super) fn warning(&self, rule: Rule, place: impl ToString, what: impl ToString) {
        self.add(Severity::Warning, rule, place, what);
    }

    /// Reports an error of the reader. Failures of the host and limits are rules of their own.
    pub(super) fn failed(&self, rule: Rule, path: impl Into<Place>, error: &crate::Error) {
        let rule = match error {
            crate::Error::Io(..) => Rule::Io,
            crate::Error::Limit(_) => Rule::Limit,
            _ => rule,
        };
        let place = error.place().clone().within(path.into());
        let what = match error {
            crate::Error::Io(_, e) => format!("{}: {e}", error.what()),
            _ => error.what().to_owned(),
        };
        self.error(rule, place, what);
    }

    pub(super) fn into_report(self) -> Report {
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
