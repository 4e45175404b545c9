//! Repetition of failed requests: exponential backoff with jitter, within one deadline.

use crate::error::{Error, Kind, Result};
use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

/// Time for a server that has not answered yet to be there. Its name may be wrong.
const TIME_LIMIT: Duration = Duration::from_secs(5);

/// Number of answers that break the protocol, after which a server is not asked again.
const WRONG_MAX: u32 = 4;

/// Limits of repeated requests.
#[derive(Clone, Copy, Debug)]
pub struct RetryPolicy {
    /// Time after which a read fails, with all its repetitions.
    pub deadline: Duration,
    /// Longest pause before the first repetition. It doubles with each one.
    pub first_pause: Duration,
    /// Longest pause between two requests that the server did not ask for.
    pub longest_pause: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            deadline: Duration::from_secs(60),
            first_pause: Duration::from_millis(100),
            longest_pause: Duration::from_secs(5),
        }
    }
}

/// Failure of one attempt.
#[derive(Debug)]
pub(crate) enum Failure {
    /// A repetition cannot succeed.
    Final(Error),
    /// A repetition may succeed, after the pause that the server asked for.
    Transient {
        what: String,
        pause: Option<Duration>,
        /// True if no server has answered so far: its name may be wrong.
        is_unknown: bool,
        /// True if there is no answer, or that of a server that fails.
        is_outage: bool,
    },
    /// The answer breaks the protocol. A proxy or a cut may be the cause, a repetition seldom helps.
    Wrong(String),
}

impl Failure {
    /// Failure of an answer that breaks the protocol.
    pub(crate) fn wrong(what: impl ToString) -> Self {
        Self::Wrong(what.to_string())
    }

    /// Failure that may pass.
    pub(crate) fn transient(what: impl ToString) -> Self {
        Self::Transient {
            what: what.to_string(),
            pause: None,
            is_unknown: false,
            is_outage: false,
        }
    }
}

impl From<Error> for Failure {
    fn from(e: Error) -> Self {
        Self::Final(e)
    }
}

impl RetryPolicy {
    /// Starts an operation whose errors name `place`.
    pub(crate) fn start<'a>(&self, place: &'a str) -> Retries<'a> {
        Retries {
            policy: *self,
            place,
            start: Instant::now(),
            longest: self.first_pause,
            wrong: 0,
            last: "no answer".to_owned(),
            is_outage: true,
        }
    }
}

/// Attempts of one operation.
pub(crate) struct Retries<'a> {
    policy: RetryPolicy,
    place: &'a str,
    start: Instant,
    /// Longest pause before the next attempt.
    longest: Duration,
    /// Number of answers that broke the protocol.
    wrong: u32,
    /// Failure of the last attempt.
    last: String,
    /// True if that is no answer, or that of a server that fails.
    is_outage: bool,
}

impl Retries<'_> {
    /// Makes an attempt. Returns `None` after the pause that follows a failure which may pass.
    ///
    /// # Errors
    /// A final failure, or the last one when the deadline has passed.
    pub(crate) async fn attempt<T>(
        &mut self,
        attempt: impl Future<Output = Result<T, Failure>>,
    ) -> Result<Option<T>> {
        let requested = match tokio::time::timeout(self.left(), attempt).await {
            Err(_) => return Err(self.expired()),
            Ok(Ok(value)) => return Ok(Some(value)),
            Ok(Err(Failure::Final(e))) => return Err(e),
            Ok(Err(Failure::Transient {
                what,
                pause,
                is_unknown,
                is_outage,
            })) => {
                self.last = what;
                self.is_outage = is_outage;
                if is_unknown {
                    self.policy.deadline = self.policy.deadline.min(TIME_LIMIT);
                }
                pause
            }
            Ok(Err(Failure::Wrong(what))) => {
                self.wrong += 1;
                if self.wrong >= WRONG_MAX {
                    return Err(Error::new(Kind::Unavailable, self.place, what));
                }
                self.last = what;
                self.is_outage = false;
                None
            }
        };
        let pause = requested.unwrap_or_else(|| jitter(self.longest));
        self.longest = (self.longest * 2).min(self.policy.longest_pause);
        if pause >= self.left() {
            return Err(self.expired());
        }
        tokio::time::sleep(pause).await;
        Ok(None)
    }

    fn left(&self) -> Duration {
        self.policy.deadline.saturating_sub(self.start.elapsed())
    }

    fn expired(&self) -> Error {
        let seconds = self.policy.deadline.as_secs_f32();
        let what = format_args!("{}; given up after {seconds} s", self.last);
        let error = Error::new(Kind::Unavailable, self.place, what);
        match self.is_outage {
            true => error.outage(),
            false => error,
        }
    }
}

/// Random time between half of `limit` and `limit`, so that clients do not return together.
fn jitter(limit: Duration) -> Duration {
    let random = RandomState::new().hash_one(0) as u32; // any 32 bits
    limit / 2 + limit.mul_f64(f64::from(random) / f64::from(u32::MAX) / 2.0)
}

/// Pause in a `Retry-After` header: seconds, or a date. `now` is the `Date` of the answer, because clocks differ. A pause
/// that cannot be read is one second.
pub(crate) fn retry_after(value: &str, now: Option<&str>) -> Duration {
    let seconds = value.trim().parse::<u64>().ok();
    let date = |text: &str| httpdate::parse_http_date(text.trim()).ok();
    let until = || Some(date(value)?.duration_since(date(now?)?).unwrap_or_default());
    let pause = seconds.map(Duration::from_secs).or_else(until);
    pause.unwrap_or(Duration::from_secs(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_are_at_most_their_limit() {
        let limit = Duration::from_millis(100);
        for _ in 0..1000 {
            let pause = jitter(limit);
            assert!(pause >= limit / 2 && pause <= limit, "{pause:?}");
        }
    }

    #[test]
    fn servers_ask_for_seconds_or_a_date() {
        assert_eq!(retry_after(" 7 ", None), Duration::from_secs(7));
        let date = "Sun, 06 Nov 1994 08:49:37 GMT";
        let earlier = Some("Sun, 06 Nov 1994 08:49:00 GMT");
        assert_eq!(retry_after(date, earlier), Duration::from_secs(37));
        assert_eq!(retry_after(date, None), Duration::from_secs(1));
        assert_eq!(
            retry_after(
                "Thu, 29 Feb 2024 00:00:00 GMT",
                Some("Wed, 28 Feb 2024 23:59:00 GMT")
            ),
            Duration::from_secs(60)
        );
        assert_eq!(retry_after("soon", earlier), Duration::from_secs(1));
    }
}
