//! Progress of a build, and the request to stop it.

use crate::{Error, Place, Result};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Counters that another thread may read while the build runs.
#[derive(Default)]
pub struct Progress {
    stop: Arc<AtomicBool>,
    entries: AtomicU64,
    bytes: AtomicU64,
    total_bytes: AtomicU64,
    /// Number of the build and of all builds within a size budget, in 32 bits each.
    attempt: AtomicU64,
    /// Stages with their start times.
    stages: Mutex<Vec<(&'static str, Instant)>>,
}

/// Values of the counters at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Snapshot {
    /// Current stage of the build.
    pub stage: &'static str,
    /// Number of entries found.
    pub entries: u64,
    /// Bytes of file content processed.
    pub bytes: u64,
    /// Total bytes of file content; 0 while unknown.
    pub total_bytes: u64,
    /// Number of the build, and of settings that a size budget may try. `None` without a size budget.
    pub attempt: Option<(u32, u32)>,
}

impl Progress {
    /// Requests the build to stop; it fails with an error of kind `Interrupted`.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Flag that requests the build to stop when it is set. A signal handler may set it.
    pub fn stop_flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.stop)
    }

    /// Returns the values of the counters.
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
            attempt: match self.attempt.load(Ordering::Relaxed) {
                0 => None,
                // Fits: 32 bits each.
                attempt => Some(((attempt >> 32) as u32, attempt as u32)),
            },
        }
    }

    /// Fails if a stop was requested. Work of the caller that takes long calls it often.
    ///
    /// # Errors
    /// `Io` with kind `Interrupted` after a request to stop.
    pub fn check(&self) -> Result<()> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(Error::io(
                Place::image(),
                "stopped",
                std::io::ErrorKind::Interrupted.into(),
            ));
        }
        Ok(())
    }

    /// Stages with their durations; that of the last one ends at the time of the call.
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

    /// Starts a stage, and ends the one before.
    pub fn stage(&self, name: &'static str) {
        if let Ok(mut stages) = self.stages.lock() {
            stages.push((name, Instant::now()));
        }
    }

    /// Starts build `number` of `count`.
    pub(crate) fn set_attempt(&self, number: u32, count: u32) {
        let attempt = u64::from(number) << 32 | u64::from(count);
        self.attempt.store(attempt, Ordering::Relaxed);
    }

    /// Counts an entry.
    pub fn add_entry(&self) {
        self.entries.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts bytes of content.
    pub fn add_bytes(&self, n: u64) {
        self.bytes.fetch_add(n, Ordering::Relaxed);
    }

    /// Resets the byte counter and sets its total. 0 if it is unknown.
    pub fn set_total(&self, n: u64) {
        self.bytes.store(0, Ordering::Relaxed);
        self.total_bytes.store(n, Ordering::Relaxed);
    }
}
