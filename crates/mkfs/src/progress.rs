//! How far a build is, and whether it should stop.

use crate::{Error, Result};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Counters that another thread may look at while the build runs.
#[derive(Default)]
pub struct Progress {
    stop: Arc<AtomicBool>,
    entries: AtomicU64,
    bytes: AtomicU64,
    total_bytes: AtomicU64,
    /// Each stage and when it began.
    stages: Mutex<Vec<(&'static str, Instant)>>,
}

/// A look at the counters.
#[derive(Clone, Copy, Debug, Default)]
pub struct Snapshot {
    /// What the build is at.
    pub stage: &'static str,
    /// Entries found so far.
    pub entries: u64,
    /// Bytes of file content done.
    pub bytes: u64,
    /// Bytes of file content in all; 0 while it is not known.
    pub total_bytes: u64,
}

impl Progress {
    /// Asks the build to stop; it fails with an error of kind `Interrupted`.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Set, it asks the same: for those who may do nothing else, such as the handler of a signal.
    pub fn stop_flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.stop)
    }

    /// The counters now.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            stage: self
                .stages
                .lock()
                .ok()
                .and_then(|s| s.last().map(|(name, _)| *name))
                .unwrap_or_default(),
            entries: self.entries.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            total_bytes: self.total_bytes.load(Ordering::Relaxed),
        }
    }

    pub(crate) fn check(&self) -> Result<()> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(Error::io(
                "image",
                "stopped",
                std::io::ErrorKind::Interrupted.into(),
            ));
        }
        Ok(())
    }

    /// The stages so far and how long each took, the last one until now.
    pub fn stages(&self) -> Vec<(&'static str, Duration)> {
        let Ok(stages) = self.stages.lock() else {
            return Vec::new();
        };
        let ends = stages
            .iter()
            .skip(1)
            .map(|(_, at)| *at)
            .chain([Instant::now()]);
        stages
            .iter()
            .zip(ends)
            .map(|((name, start), end)| (*name, end - *start))
            .collect()
    }

    pub(crate) fn stage(&self, name: &'static str) {
        if let Ok(mut stages) = self.stages.lock() {
            stages.push((name, Instant::now()));
        }
    }

    pub(crate) fn add_entry(&self) {
        self.entries.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn add_bytes(&self, n: u64) {
        self.bytes.fetch_add(n, Ordering::Relaxed);
    }

    /// Starts to count `n` bytes, none of which are done.
    pub(crate) fn set_total(&self, n: u64) {
        self.bytes.store(0, Ordering::Relaxed);
        self.total_bytes.store(n, Ordering::Relaxed);
    }
}
