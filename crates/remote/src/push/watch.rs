//! Progress of an upload, its cancellation, and the time after which a server that takes nothing has failed.

use crate::error::{Error, Kind, Result};
use crate::retry::Failure;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Time between two looks at a request.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Time for an answer after the last byte of a request: the server may copy or hash the whole blob.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(300);

/// Step of an upload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Stage: `hash` while digests are computed, `upload` while bytes are sent.
    pub stage: &'static str,
    /// Bytes of the blob that are done.
    pub bytes: u64,
    /// Size of the blob. Unit: bytes.
    pub total_bytes: u64,
}

/// Observer of an upload.
pub(crate) struct Watch<'a> {
    place: &'a str,
    report: &'a dyn Fn(&Step) -> bool,
}

impl<'a> Watch<'a> {
    pub(crate) fn new(place: &'a str, report: &'a dyn Fn(&Step) -> bool) -> Self {
        Self { place, report }
    }

    /// Location of the upload, for errors.
    pub(crate) fn place(&self) -> &str {
        self.place
    }

    /// Error about the upload.
    pub(crate) fn error(&self, kind: Kind, what: impl std::fmt::Display) -> Error {
        Error::new(kind, self.place, what)
    }

    /// Reports a step. Fails if the upload is to stop.
    pub(crate) fn step(&self, stage: &'static str, bytes: u64, total_bytes: u64) -> Result<()> {
        let step = Step {
            stage,
            bytes,
            total_bytes,
        };
        match (self.report)(&step) {
            true => Ok(()),
            false => Err(self.error(Kind::Unavailable, "stopped")),
        }
    }

    /// Waits before the next request of a blob. Fails if the upload is to stop.
    pub(crate) async fn pause(&self, pause: Duration, bytes: u64, total: u64) -> Result<()> {
        let end = Instant::now() + pause;
        while Instant::now() < end {
            self.step("upload", bytes, total)?;
            let left = end.saturating_duration_since(Instant::now());
            tokio::time::sleep(POLL_INTERVAL.min(left)).await;
        }
        Ok(())
    }

    /// Runs a request that sends the bytes of a blob from `start` to `end`, and reports its progress. `total`: size of
    /// the blob. Fails if the server takes no byte for the time `idle`.
    pub(crate) async fn sending<T>(
        &self,
        (start, end, total): (u64, u64, u64),
        sent: &AtomicU64,
        idle: Duration,
        request: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let mut request = pin!(request);
        let mut last = (0, Instant::now());
        loop {
            if let Ok(result) = tokio::time::timeout(POLL_INTERVAL, request.as_mut()).await {
                return result;
            }
            let bytes = sent.load(Ordering::Relaxed);
            self.step("upload", start + bytes, total)?;
            if bytes != last.0 {
                last = (bytes, Instant::now());
            }
            let limit = match start + bytes >= end {
                true => ANSWER_TIMEOUT,
                false => idle,
            };
            if last.1.elapsed() > limit {
                return Err(Failure::transient("the server takes no more bytes"));
            }
        }
    }
}
