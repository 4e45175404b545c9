//! Answers with a whole object to requests for ranges.
//!
//! A mirror answers so until it has a copy of the object. Its answers are dropped, and the request is repeated: a few times, with
//! pauses, and by one reader for all. A server that goes on like that does not support ranges.

use crate::client::Reply;
use crate::error::{Error, Kind};
use crate::retry::{Failure, RetryPolicy};
use reqwest::StatusCode;
use reqwest::header::ACCEPT_RANGES;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Number of whole answers in a row after which a server does not support ranges. A connection takes some hundred KiB of each
/// before it is closed.
const ANSWERS_MAX: u32 = 12;

/// Time of whole answers in a row after which a registry does not support ranges: for its copy of a blob.
const REGISTRY_TIME_MAX: Duration = Duration::from_secs(20);

/// The same for other servers, many of which never do.
const TIME_MAX: Duration = Duration::from_secs(5);

/// Whole answers of a server in a row.
pub(super) struct WholeAnswers {
    retry: RetryPolicy,
    time_max: Duration,
    row: Mutex<Option<Row>>,
    /// Held by the only request while the last answer was a whole one.
    trial: tokio::sync::Mutex<()>,
}

struct Row {
    first: Instant,
    count: u32,
    /// Time of the next request.
    next: Instant,
    pause: Duration,
}

impl Row {
    fn is_too_long(&self, time_max: Duration) -> bool {
        self.count >= ANSWERS_MAX || self.first.elapsed() >= time_max
    }
}

/// Permit to send a request.
pub(super) struct Permit<'a> {
    /// Held by the only request while the last answer was a whole one.
    _trial: Option<tokio::sync::MutexGuard<'a, ()>>,
}

impl WholeAnswers {
    /// `is_blob`: the object is a blob of a registry.
    pub(super) fn new(retry: RetryPolicy, is_blob: bool) -> Self {
        Self {
            retry,
            time_max: match is_blob {
                true => REGISTRY_TIME_MAX,
                false => TIME_MAX,
            },
            row: Mutex::default(),
            trial: tokio::sync::Mutex::default(),
        }
    }

    fn row(&self) -> MutexGuard<'_, Option<Row>> {
        self.row.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a request may be sent: at once, unless the last answer was a whole one.
    ///
    /// # Errors
    /// `Unsupported` shortly after the last one of too many whole answers.
    pub(super) async fn permit(&self, place: &str) -> Result<Permit<'_>, Failure> {
        if self.row().is_none() {
            return Ok(Permit { _trial: None });
        }
        let trial = self.trial.lock().await;
        let pause = match &*self.row() {
            None => return Ok(Permit { _trial: None }),
            Some(row) => {
                let pause = row.next.saturating_duration_since(Instant::now());
                if row.is_too_long(self.time_max) && !pause.is_zero() {
                    return Err(unsupported(place).into());
                }
                pause
            }
        };
        tokio::time::sleep(pause).await;
        Ok(Permit {
            _trial: Some(trial),
        })
    }

    /// Checks that an answer is no whole object in place of a range of it.
    ///
    /// # Errors
    /// A failure that may pass, or `Unsupported` after too many whole answers.
    pub(super) fn check(
        &self,
        reply: &Reply,
        range: &Range<u64>,
        place: &str,
    ) -> Result<(), Failure> {
        if reply.status() != StatusCode::OK || len(reply, range).is_some() {
            if reply.status().is_success() {
                *self.row() = None;
            }
            return Ok(());
        }
        if reply.header(ACCEPT_RANGES) == Some("none") {
            return Err(unsupported(place).into());
        }
        let now = Instant::now();
        let mut row = self.row();
        // A row that ended long ago is another one.
        row.take_if(|row| row.next + self.time_max <= now);
        let row = row.get_or_insert(Row {
            first: now,
            count: 0,
            next: now,
            pause: self.retry.first_pause,
        });
        // Requests that were sent at once count once.
        if row.next <= now {
            row.count += 1;
            row.next = now + row.pause;
            row.pause = (row.pause * 2).min(self.retry.longest_pause);
        }
        match row.is_too_long(self.time_max) {
            true => Err(unsupported(place).into()),
            false => Err(Failure::Transient {
                what: UNSUPPORTED.to_owned(),
                pause: Some(Duration::ZERO),
                is_unknown: false,
                is_outage: false,
            }),
        }
    }
}

/// Length of the object that is the answer to a request for a range, if it is within the range.
pub(super) fn len(reply: &Reply, range: &Range<u64>) -> Option<u64> {
    let len = reply.stated_len();
    len.filter(|len| range.start == 0 && *len <= range.end)
}

const UNSUPPORTED: &str = "the server does not support range requests; download the image first";

/// Error for a server without ranges.
pub(super) fn unsupported(place: &str) -> Error {
    Error::new(Kind::Unsupported, place, UNSUPPORTED)
}
