//! Objects behind HTTP: range requests whose answers must all come from one version of the object.

use super::object::{Identity, Later, Object};
use crate::client::{Client, Content, RENEWALS_MAX, Reply, Request, basic};
use crate::error::{Error, Kind, Result};
use crate::retry::{Failure, RetryPolicy};
use reqwest::header::{
    CONTENT_ENCODING, CONTENT_RANGE, ETAG, HeaderName, IF_MATCH, LAST_MODIFIED, RANGE,
};
use reqwest::{Method, StatusCode, Url};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// URL of an object, and what a request to it needs.
pub(crate) struct Target {
    pub(crate) url: Url,
    pub(crate) authorization: Option<String>,
}

/// Where an object is, which may need credentials that expire.
pub(crate) trait Address: Send + Sync {
    /// Target of the next request.
    fn target(&self) -> Later<'_, Result<Target, Failure>>;

    /// Discards the credentials `used`, which the server refused. Returns false if there are no others.
    fn renew(&self, reply: &Reply, used: Option<&str>) -> bool;
}

/// Address that needs no more than its URL.
pub(crate) struct Plain {
    url: Url,
    authorization: Option<String>,
}

impl Plain {
    /// Address for a URL. Its user name and password become basic authentication.
    pub(crate) fn new(url: &Url) -> Self {
        let mut plain = url.clone();
        // Fails only for URLs without a host.
        let _ = plain.set_username("");
        let _ = plain.set_password(None);
        plain.set_fragment(None);
        let password = url.password().unwrap_or_default();
        let given = !url.username().is_empty() || !password.is_empty();
        Self {
            authorization: given.then(|| basic(&decoded(url.username()), &decoded(password))),
            url: plain,
        }
    }
}

impl Address for Plain {
    fn target(&self) -> Later<'_, Result<Target, Failure>> {
        Box::pin(async {
            Ok(Target {
                url: self.url.clone(),
                authorization: self.authorization.clone(),
            })
        })
    }

    fn renew(&self, _: &Reply, _: Option<&str>) -> bool {
        false
    }
}

/// Replaces the escapes `%XX` of a part of a URL.
fn decoded(text: &str) -> String {
    let mut out = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let hex = (first == b'%').then(|| after.get(..2)).flatten();
        let byte = hex.and_then(|hex| u8::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok());
        rest = if byte.is_some() { &after[2..] } else { after };
        out.push(byte.unwrap_or(first));
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// Object behind an address, with a pinned identity.
pub(crate) struct HttpObject {
    client: Arc<Client>,
    address: Box<dyn Address>,
    /// Where redirects led to. Later requests go there at once.
    redirected: Mutex<Option<Url>>,
    identity: Identity,
    place: String,
    retry: RetryPolicy,
    retries: AtomicU64,
    /// Shortest recent time to an answer, 0 before the first one. Unit: microseconds.
    round_trip: AtomicU64,
}

/// Part of an object, as the server describes it.
struct Part {
    validator: Option<String>,
    /// Size of the whole object. Unit: bytes.
    size: u64,
    bytes: Vec<u8>,
}

impl HttpObject {
    /// Object whose identity is known from elsewhere.
    pub(crate) fn pinned(
        (client, address): (Arc<Client>, Box<dyn Address>),
        identity: Identity,
        place: String,
        retry: RetryPolicy,
    ) -> Self {
        Self {
            client,
            address,
            redirected: Mutex::new(None),
            identity,
            place,
            retry,
            retries: AtomicU64::new(0),
            round_trip: AtomicU64::new(0),
        }
    }

    /// Asks for the first `head` bytes, and pins the version that they come from. `has_root`: bytes are verified, so
    /// the server need not tell versions apart.
    pub(crate) async fn open(
        client: Arc<Client>,
        address: Box<dyn Address>,
        place: String,
        head: u64,
        has_root: bool,
        retry: RetryPolicy,
    ) -> Result<(Self, Vec<u8>)> {
        let name = place.clone();
        let identity = Identity {
            validator: String::new(),
            name,
            size: 0,
        };
        let mut object = Self::pinned((client, address), identity, place, retry);
        let part = object.fetch(0..head, None).await?;
        object.identity.size = part.size;
        object.identity.validator = match part.validator {
            Some(validator) => validator,
            None if has_root => String::new(),
            None => {
                let what = "the server names no version (ETag or Last-Modified), so a replaced object would not be noticed; give its --verity ROOT-HASH";
                return Err(object.error(Kind::Unsupported, what));
            }
        };
        Ok((object, part.bytes))
    }

    fn error(&self, kind: Kind, what: impl std::fmt::Display) -> Error {
        Error::new(kind, &self.place, what)
    }

    /// Reads a range. `pinned`: identity that the answer must have.
    async fn fetch(&self, range: Range<u64>, pinned: Option<&Identity>) -> Result<Part> {
        let mut renewals = 0;
        let mut retries = self.retry.start(&self.place);
        loop {
            let attempt = self.attempt(&range, pinned, &mut renewals);
            if let Some(part) = retries.attempt(attempt).await? {
                return Ok(part);
            }
            self.retries.fetch_add(1, Ordering::Relaxed);
        }
    }

    async fn attempt(
        &self,
        range: &Range<u64>,
        pinned: Option<&Identity>,
        renewals: &mut u32,
    ) -> Result<Part, Failure> {
        loop {
            let target = self.address.target().await?;
            let known = self.redirect().clone();
            let request = Request {
                method: Method::GET,
                authorization: target.authorization.clone().filter(|_| known.is_none()),
                url: known.clone().unwrap_or_else(|| target.url.clone()),
                headers: &headers(range, pinned),
                content: Content::None,
            };
            let start = Instant::now();
            let reply = self.client.send(request, &self.place).await?;
            self.answered_after(start.elapsed());
            let status = reply.status();
            let is_denied = matches!(status.as_u16(), 401 | 403);
            if known.is_some() && (is_denied || status == StatusCode::NOT_FOUND) {
                // A redirect holds a signature that expires.
                *self.redirect() = None;
                continue;
            }
            let used = target.authorization.as_deref();
            if is_denied && *renewals < RENEWALS_MAX {
                *renewals += 1;
                // A signature may also expire between the redirect and its target's answer.
                if self.address.renew(&reply, used) || reply.url != target.url {
                    continue;
                }
            }
            if known.is_none() && reply.url != target.url && status.is_success() {
                *self.redirect() = Some(reply.url.clone());
            }
            return self.part(reply, range, pinned).await;
        }
    }

    /// Counts the time to an answer. One that is longer than usual counts little: it may be the server's.
    fn answered_after(&self, time: Duration) {
        let time = u64::try_from(time.as_micros()).unwrap_or(u64::MAX).max(1);
        let shortest = |old: u64| {
            Some(match old {
                0 => time,
                old => time.min(old + old.div_ceil(64)),
            })
        };
        let update = &self.round_trip;
        let _ = update.fetch_update(Ordering::Relaxed, Ordering::Relaxed, shortest);
    }

    fn redirect(&self) -> std::sync::MutexGuard<'_, Option<Url>> {
        self.redirected
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks an answer and reads its body.
    async fn part(
        &self,
        reply: Reply,
        range: &Range<u64>,
        pinned: Option<&Identity>,
    ) -> Result<Part, Failure> {
        let changed = |what: &str| {
            let what = format_args!("the object was replaced since it was opened: {what}");
            Failure::Final(self.error(Kind::Changed, what))
        };
        let status = reply.status();
        let (start, end, size) = match status {
            StatusCode::PARTIAL_CONTENT => {
                let stated = reply.header(CONTENT_RANGE).and_then(content_range);
                stated
                    .ok_or_else(|| Failure::transient("the server names no range in its answer"))?
            }
            StatusCode::OK => {
                let len = reply
                    .stated_len()
                    .filter(|len| range.start == 0 && *len <= range.end);
                let what = "the server does not support range requests; download the image first";
                let len = len.ok_or_else(|| self.error(Kind::Unsupported, what))?;
                (0, len, len)
            }
            StatusCode::RANGE_NOT_SATISFIABLE if pinned.is_none() => {
                return Err(self.error(Kind::Unsupported, "the object is empty").into());
            }
            StatusCode::RANGE_NOT_SATISFIABLE => return Err(changed("it is shorter")),
            StatusCode::PRECONDITION_FAILED if pinned.is_some() => {
                return Err(changed("it has another ETag"));
            }
            StatusCode::NOT_FOUND | StatusCode::GONE if pinned.is_some() => {
                let what = "the object was removed since it was opened";
                return Err(self.error(Kind::Changed, what).into());
            }
            _ => return Err(reply.refused(&self.place)),
        };
        if reply
            .header(CONTENT_ENCODING)
            .is_some_and(|coding| coding != "identity")
        {
            let what = "the server compresses the object, so ranges of it have no meaning";
            return Err(self.error(Kind::Unsupported, what).into());
        }
        let validator = validator(&reply);
        if let Some(pinned) = pinned {
            if size != pinned.size {
                return Err(changed("it has another size"));
            }
            let is_digest = pinned.name.is_empty();
            if !is_digest && validator.as_ref().is_some_and(|v| *v != pinned.validator) {
                return Err(changed("it has another ETag or time of modification"));
            }
            if !is_digest && validator.is_none() && !pinned.validator.is_empty() {
                return Err(Failure::transient(
                    "the server does not name the version of its answer",
                ));
            }
        }
        let wanted = range.end.min(size) - range.start.min(size);
        if start != range.start || end - start != wanted {
            return Err(Failure::transient("the server answers with another range"));
        }
        // Fits: a range of the caller, which allocates it.
        let bytes = reply.body(wanted as usize, &self.place).await?;
        if bytes.len() as u64 != wanted {
            return Err(Failure::transient(
                "the answer is shorter than the server stated",
            ));
        }
        Ok(Part {
            validator,
            size,
            bytes,
        })
    }
}

impl Object for HttpObject {
    fn identity(&self) -> &Identity {
        &self.identity
    }

    fn read(&self, range: Range<u64>) -> Later<'_, Result<Vec<u8>>> {
        Box::pin(async { Ok(self.fetch(range, Some(&self.identity)).await?.bytes) })
    }

    fn round_trip(&self) -> Option<Duration> {
        let time = self.round_trip.load(Ordering::Relaxed);
        (time > 0).then(|| Duration::from_micros(time))
    }

    fn retries(&self) -> u64 {
        self.retries.load(Ordering::Relaxed)
    }
}

/// Headers of a request for a range of a pinned object.
fn headers(range: &Range<u64>, pinned: Option<&Identity>) -> Vec<(HeaderName, String)> {
    let last = range.end.saturating_sub(1);
    let mut headers = vec![(RANGE, format!("bytes={}-{last}", range.start))];
    // Weak ETags never match in this header.
    let etag = pinned.and_then(|p| p.validator.strip_prefix("etag "));
    if let Some(etag) = etag.filter(|etag| etag.starts_with('"')) {
        headers.push((IF_MATCH, etag.to_owned()));
    }
    headers
}

/// Version of the object that an answer came from.
fn validator(reply: &Reply) -> Option<String> {
    let etag = reply.header(ETAG).map(|etag| format!("etag {etag}"));
    etag.or_else(|| {
        reply
            .header(LAST_MODIFIED)
            .map(|time| format!("modified {time}"))
    })
}

/// Start, end and size of `bytes START-LAST/SIZE`.
fn content_range(value: &str) -> Option<(u64, u64, u64)> {
    let (range, size) = value.strip_prefix("bytes ")?.split_once('/')?;
    let (start, last) = range.split_once('-')?;
    let number = |text: &str| text.trim().parse::<u64>().ok();
    let (start, last, size) = (number(start)?, number(last)?, number(size)?);
    (start <= last && last < size).then_some((start, last + 1, size))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_ranges_are_not_accepted() {
        assert_eq!(content_range("bytes 0-4095/8192"), Some((0, 4096, 8192)));
        for bad in [
            "bytes 1-0/2",
            "bytes 0-2/2",
            "bytes 0-1/*",
            "0-1/2",
            "bytes */2",
            "",
        ] {
            assert_eq!(content_range(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_password_in_a_url_becomes_a_header() {
        let plain = Plain::new(&Url::parse("http://us%65r:p%3Aw@h/i#f").unwrap());
        assert_eq!(plain.url.as_str(), "http://h/i");
        assert_eq!(plain.authorization, Some(basic("user", "p:w")));
    }
}
