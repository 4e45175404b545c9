//! Trace of the requests for an image: when each was sent, why, and what came of it.
//!
//! It is always kept, in bounded memory, and has no secrets: no query, no user and no header of a request, and of the target of
//! a redirect only its origin, since the path may be a signature.

use crate::address::shown;
use crate::cache::ImageCache;
use reqwest::Url;
use std::fmt::Write as _;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Number of requests that are kept: the first ones.
const KEPT_MAX: usize = 2048;

/// Length of a URL in the trace. Its server may choose it. Unit: bytes.
const URL_MAX: usize = 512;

/// Length of the last line, at most. Unit: bytes.
const SUMMARY_MAX: usize = 160;

tokio::task_local! {
    /// Reason of the requests that a future sends.
    static REASON: Reason;
}

/// Reason of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// A token of the registry.
    Login,
    /// Manifest of a tag or digest, or the configuration that it names.
    Manifest,
    /// First bytes and metadata, before the image is open.
    First,
    /// Hash blocks that verify chunks.
    Tree,
    /// Document that comes with the image: profile, signature, list of devices.
    Beside,
    /// A reader waits for the first chunk.
    Demand,
    /// A reader is expected to want it next.
    Ahead,
    /// A profile names it.
    Profile,
    /// The start list of the image names it.
    List,
    /// Neighbours of what a reader wanted.
    Near,
    /// The rest of the image.
    Fill,
}

impl Reason {
    /// Makes this the reason of the requests that a future sends, except those of tasks that it spawns.
    pub(crate) fn scope<F: Future>(self, future: F) -> impl Future<Output = F::Output> {
        REASON.scope(self, future)
    }

    fn name(self) -> &'static str {
        match self {
            Self::Login => "login",
            Self::Manifest => "manifest",
            Self::First => "first",
            Self::Tree => "tree",
            Self::Beside => "beside",
            Self::Demand => "demand",
            Self::Ahead => "ahead",
            Self::Profile => "profile",
            Self::List => "list",
            Self::Near => "near",
            Self::Fill => "fill",
        }
    }
}

/// Object whose ranges are requested.
pub(crate) struct Traced {
    /// Digest of the whole object, if it has one.
    digest: Option<String>,
    /// Cache of the image that the object is, once it is open.
    cache: OnceLock<Weak<ImageCache>>,
}

impl Traced {
    pub(crate) fn new(digest: Option<String>) -> Self {
        Self {
            digest,
            cache: OnceLock::new(),
        }
    }

    /// Sets the cache of the image that the object is. Only the first one counts.
    pub(crate) fn set_cache(&self, cache: &Arc<ImageCache>) {
        let _ = self.cache.set(Arc::downgrade(cache));
    }

    /// Bytes of a range that are in chunks that were read. `None` for an object that is no open image.
    fn used(&self, range: Range<u64>) -> Option<u64> {
        let cache = self.cache.get()?.upgrade()?;
        let len = cache.chunk_size();
        let chunks = range.start / len..range.end.div_ceil(len);
        let part = |chunk: u64| {
            let (start, end) = (chunk * len, (chunk + 1) * len);
            end.min(range.end) - start.max(range.start)
        };
        let read = chunks.filter(|chunk| cache.was_ever_read(*chunk));
        Some(read.map(part).sum())
    }
}

/// Requests of one client.
pub(crate) struct Trace {
    start: Instant,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    kept: Vec<Entry>,
    /// Number of all requests, and bytes of their answers.
    requests: u64,
    bytes: u64,
}

/// Request, and its answer.
struct Entry {
    reason: Reason,
    url: String,
    range: Option<Range<u64>>,
    object: Option<Arc<Traced>>,
    /// Times since the start of the trace: of the request, of the first byte of its answer, and of its end.
    start: Duration,
    first: Option<Duration>,
    end: Option<Duration>,
    /// Status of the answer.
    status: Option<u16>,
    /// Bytes of the body that have arrived.
    bytes: u64,
}

impl Default for Trace {
    fn default() -> Self {
        Self {
            start: Instant::now(),
            state: Mutex::default(),
        }
    }
}

impl Trace {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a request that is sent. `is_target`: the URL is the target of a redirect.
    pub(crate) fn begin(
        self: &Arc<Self>,
        (url, is_target): (&Url, bool),
        range: Option<&str>,
        object: Option<&Arc<Traced>>,
    ) -> Recorded {
        let default = match object {
            Some(_) => Reason::First,
            None => Reason::Manifest,
        };
        let reason = REASON.try_with(|reason| *reason).unwrap_or(default);
        let start = self.start.elapsed();
        let mut state = self.state();
        state.requests += 1;
        let index = (state.kept.len() < KEPT_MAX).then_some(state.kept.len());
        if index.is_some() {
            state.kept.push(Entry {
                reason,
                url: url_of(url, is_target),
                range: range.and_then(range_of),
                object: object.cloned(),
                start,
                first: None,
                end: None,
                status: None,
                bytes: 0,
            });
        }
        drop(state);
        Recorded {
            trace: Arc::clone(self),
            index,
        }
    }

    /// Lines of JSON, one for each request, and a last one with the sums. At most `max` bytes: requests that are left out
    /// are the last ones.
    pub(crate) fn lines(&self, max: usize) -> String {
        let state = self.state();
        let mut text = String::new();
        let (mut requests, mut bytes) = (0, 0);
        for entry in &state.kept {
            let before = text.len();
            entry.write(&mut text);
            if text.len() > max.saturating_sub(SUMMARY_MAX) {
                text.truncate(before);
                break;
            }
            requests += 1;
            bytes += entry.bytes;
        }
        if max >= SUMMARY_MAX {
            let (all, all_bytes) = (state.requests, state.bytes);
            let (omitted, omitted_bytes) = (all - requests, all_bytes - bytes);
            let _ = writeln!(
                text,
                r#"{{"requests":{all},"bytes":{all_bytes},"omitted_requests":{omitted},"omitted_bytes":{omitted_bytes}}}"#
            );
        }
        text
    }
}

impl Entry {
    /// Appends the line of the request.
    fn write(&self, out: &mut String) {
        let text = |text: &str| serde_json::Value::from(text).to_string();
        let ms = |time: Option<Duration>| {
            let ms = time.map(|time| format!("{:.1}", time.as_secs_f64() * 1e3));
            ms.unwrap_or_else(|| "null".to_owned())
        };
        let number = |n: Option<u64>| n.map_or_else(|| "null".to_owned(), |n| n.to_string());
        let digest = self.object.as_ref().and_then(|o| o.digest.as_deref());
        let range = self.range.as_ref();
        let _ = writeln!(
            out,
            r#"{{"start_ms":{},"first_ms":{},"end_ms":{},"reason":"{}","url":{},"digest":{},"range_start":{},"range_end":{},"status":{},"bytes":{},"used_bytes":{}}}"#,
            ms(Some(self.start)),
            ms(self.first),
            ms(self.end),
            self.reason.name(),
            text(&self.url),
            digest.map_or_else(|| "null".to_owned(), text),
            number(range.map(|range| range.start)),
            number(range.map(|range| range.end)),
            number(self.status.map(u64::from)),
            self.bytes,
            number(self.used()),
        );
    }

    /// Bytes of the answer that readers have used.
    fn used(&self) -> Option<u64> {
        let (object, range) = (self.object.as_ref()?, self.range.as_ref()?);
        let start = match self.status {
            Some(206) => range.start,
            _ => 0,
        };
        object.used(start..start.saturating_add(self.bytes).min(range.end).max(start))
    }
}

/// Request of a trace, which ends when the value is dropped.
pub(crate) struct Recorded {
    trace: Arc<Trace>,
    /// `None` if it is not kept.
    index: Option<usize>,
}

impl Recorded {
    fn change(&self, change: impl FnOnce(&mut State, Option<usize>)) {
        change(&mut self.trace.state(), self.index);
    }

    /// Notes the start of the answer.
    pub(crate) fn note_answer(&self, status: u16) {
        let now = self.trace.start.elapsed();
        self.change(|state, index| {
            if let Some(entry) = index.and_then(|index| state.kept.get_mut(index)) {
                (entry.first, entry.status) = (Some(now), Some(status));
            }
        });
    }

    /// Notes bytes of the body.
    pub(crate) fn arrived(&self, bytes: usize) {
        self.change(|state, index| {
            state.bytes += bytes as u64;
            if let Some(entry) = index.and_then(|index| state.kept.get_mut(index)) {
                entry.bytes += bytes as u64;
            }
        });
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        let now = self.trace.start.elapsed();
        self.change(|state, index| {
            if let Some(entry) = index.and_then(|index| state.kept.get_mut(index)) {
                entry.end = Some(now);
            }
        });
    }
}

/// URL as the trace has it.
fn url_of(url: &Url, is_target: bool) -> String {
    let mut text = match is_target {
        true => url.origin().ascii_serialization(),
        false => shown(url),
    };
    // URLs are ASCII.
    text.truncate(URL_MAX);
    text
}

/// Range of a header: `bytes=START-LAST`.
fn range_of(header: &str) -> Option<Range<u64>> {
    let (start, last) = header.strip_prefix("bytes=")?.split_once('-')?;
    Some(start.parse().ok()?..last.parse::<u64>().ok()?.checked_add(1)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Url {
        Url::parse(text).unwrap()
    }

    #[test]
    fn urls_have_no_secrets() {
        let signed = url("https://user:secret@h/i?signature=secret#secret");
        assert_eq!(url_of(&signed, false), "https://h/i?...");
        assert_eq!(
            url_of(&url("https://cdn/secret?secret"), true),
            "https://cdn"
        );
        let long = url(&format!("https://h/{}", "a".repeat(10_000)));
        assert_eq!(url_of(&long, false).len(), URL_MAX);
    }

    #[test]
    fn lines_have_a_bound_and_sums_of_all_requests() {
        let trace = Arc::new(Trace::default());
        for n in 0..KEPT_MAX + 3 {
            let recorded = trace.begin((&url("http://h/i"), false), Some("bytes=0-9"), None);
            recorded.note_answer(206);
            recorded.arrived(n % 2);
        }
        let all = trace.lines(usize::MAX);
        assert_eq!(all.lines().count(), KEPT_MAX + 1);
        let last = r#"{"requests":2051,"bytes":1025,"omitted_requests":3,"omitted_bytes":1}"#;
        assert_eq!(all.lines().last(), Some(last));
        let short = trace.lines(1000);
        assert!(short.len() <= 1000 && short.lines().count() > 2, "{short}");
        let sums = short.lines().last().unwrap();
        assert!(sums.starts_with(r#"{"requests":2051,"#), "{sums}");
        assert_eq!(trace.lines(10), "");
    }

    #[tokio::test]
    async fn the_innermost_reason_counts() {
        let trace = Arc::new(Trace::default());
        let send = async || drop(trace.begin((&url("http://h/i"), false), None, None));
        send().await;
        Reason::Demand
            .scope(async {
                Reason::Login.scope(send()).await;
                send().await;
            })
            .await;
        let lines = trace.lines(usize::MAX);
        let reasons: Vec<_> = lines
            .lines()
            .filter_map(|line| line.split_once(r#""reason":""#)?.1.split('"').next())
            .collect();
        assert_eq!(reasons, ["manifest", "login", "demand"]);
    }
}
