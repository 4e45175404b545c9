//! Objects behind HTTP: range requests whose answers must all come from one version of the object.

use super::object::{Identity, Later, Object, Sink};
use super::whole_answers::{self, WholeAnswers};
use crate::client::link::Link;
use crate::client::origin::decoded;
use crate::client::renewal::Pass;
use crate::client::{Client, Content, Denial, RENEWALS_MAX, Redirects, Reply, Request, basic};
use crate::error::{Error, Kind, Result};
use crate::retry::{Failure, RetryPolicy};
use crate::trace::Traced;
use reqwest::header::{
    CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, ETAG, HeaderName, IF_MATCH, LAST_MODIFIED,
    RANGE,
};
use reqwest::{Method, StatusCode, Url};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// Number of answers that one range may come in.
const PARTS_MAX: u32 = 64;

/// Failure of a server with more answers.
const FEW_BYTES: &str = "the server answers with a few bytes at a time";

/// URL of an object, and what a request to it needs.
pub(crate) struct Target {
    pub(crate) url: Url,
    pub(crate) authorization: Option<String>,
    /// Right to use credentials that expire.
    pub(crate) pass: Option<Pass>,
}

/// Where an object is, which may need credentials that expire.
pub(crate) trait Address: Send + Sync {
    /// All that selects the object and stays the same from one request to the next. It may hold secrets.
    fn origin(&self) -> String;

    /// Target of the next request.
    fn target(&self) -> Later<'_, Result<Target, Failure>>;

    /// Notes an answer of the server.
    fn note_answer(&self, _reply: &Reply, _used: Option<&Pass>) {}

    /// Notes that the server refuses credentials. Returns true if the next request may have others.
    fn renew(&self, _denial: &Denial, _used: Option<&Pass>) -> bool {
        false
    }

    /// Statuses of refused credentials, besides 401 and 403.
    fn denies_with(&self) -> Option<StatusCode> {
        None
    }

    /// True if the other connections to the server are opened with the first request, because only the target names it.
    fn connects_with_first_request(&self) -> bool {
        false
    }

    /// True if the path of the target holds no secret.
    fn has_public_path(&self) -> bool {
        false
    }
}

/// Address that needs no more than its URL.
pub(crate) struct Plain {
    url: Url,
    /// Name that the server may give other content to.
    user: String,
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
            user: decoded(url.username()),
            url: plain,
        }
    }
}

impl Address for Plain {
    fn origin(&self) -> String {
        format!("{} {}", self.url, self.user)
    }

    fn target(&self) -> Later<'_, Result<Target, Failure>> {
        Box::pin(async {
            Ok(Target {
                url: self.url.clone(),
                authorization: self.authorization.clone(),
                pass: None,
            })
        })
    }
}

/// Object behind an address, with a pinned identity.
pub(crate) struct HttpObject {
    client: Arc<Client>,
    address: Box<dyn Address>,
    /// Where redirects led to, and the `Referer` of that request. Later requests go there at once.
    redirected: Mutex<Option<(Url, String)>>,
    identity: Identity,
    place: String,
    retry: RetryPolicy,
    whole_answers: WholeAnswers,
    retries: AtomicU64,
    traced: Arc<Traced>,
}

/// Part of an object, as the server describes it.
struct Part {
    validator: Option<String>,
    /// Size of the whole object, if the server states it. Unit: bytes.
    size: Option<u64>,
    bytes: Vec<u8>,
}

/// Answer that was checked, whose body is not read yet.
struct Checked {
    reply: Reply,
    validator: Option<String>,
    /// Size of the whole object, if the server states it. Unit: bytes.
    size: Option<u64>,
    /// Length of the body. Unit: bytes.
    len: u64,
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
            whole_answers: WholeAnswers::new(retry, identity.is_digest()),
            traced: Arc::new(Traced::new(
                identity.is_digest().then(|| identity.validator.clone()),
            )),
            identity,
            place,
            retry,
            retries: AtomicU64::new(0),
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
        let identity = Identity {
            validator: String::new(),
            origin: address.origin(),
            size: 0,
        };
        let mut object = Self::pinned((client, address), identity, place, retry);
        let mut part = object.fetch(0..head).await?;
        object.identity.size = match part.size {
            Some(size) => size,
            None => object.stated_size(part.validator.as_deref()).await?,
        };
        object.identity.validator = match part.validator {
            Some(validator) => validator,
            None if has_root => String::new(),
            None => {
                let what = "the server names no version (ETag or Last-Modified), so a replaced object would not be noticed; give its --verity ROOT-HASH";
                return Err(object.error(Kind::Unsupported, what));
            }
        };
        let (done, requested) = (part.bytes.len() as u64, head.min(object.identity.size));
        if done > requested {
            let what = "the server states another size than that of its answer";
            return Err(object.error(Kind::Changed, what));
        }
        if done < requested {
            part.bytes.extend(object.read(done..requested).await?);
        }
        Ok((object, part.bytes))
    }

    fn error(&self, kind: Kind, what: impl std::fmt::Display) -> Error {
        Error::new(kind, &self.place, what)
    }

    /// Reads a range of an object that is not pinned, or less at its end or if its size is not known.
    async fn fetch(&self, range: Range<u64>) -> Result<Part> {
        let mut renewals = 0;
        let mut retries = self.retry.start(&self.place);
        let mut found: Option<Part> = None;
        let mut parts = 0;
        loop {
            let done = found.as_ref().map_or(0, |part| part.bytes.len() as u64);
            let missing = range.start + done..range.end;
            let attempt = async {
                let checked = self.answer(&missing, None, &mut renewals).await?;
                let (validator, size) = (checked.validator.clone(), checked.size);
                let mut bytes = Vec::new();
                self.pass_on(checked, &mut |part| bytes.extend_from_slice(part))
                    .await?;
                Ok(Part {
                    validator,
                    size,
                    bytes,
                })
            };
            let Some(part) = retries.attempt(attempt).await? else {
                self.retries.fetch_add(1, Ordering::Relaxed);
                continue;
            };
            parts += 1;
            if parts > PARTS_MAX {
                return Err(self.error(Kind::Unavailable, FEW_BYTES));
            }
            // Servers may answer with a part of the range.
            let part = match found.take() {
                None => part,
                Some(first) => self.joined(first, part)?,
            };
            // The caller finds a size that is not known.
            let is_whole = part
                .size
                .is_none_or(|size| range.start + part.bytes.len() as u64 >= range.end.min(size));
            if is_whole {
                return Ok(part);
            }
            found = Some(part);
        }
    }

    /// Reads a range of the pinned object: as [`read_to`](Object::read_to).
    async fn stream(&self, range: Range<u64>, is_urgent: bool, sink: Sink<'_>) -> Result<()> {
        let mut renewals = 0;
        let mut retries = self.retry.start(&self.place);
        let mut missing = range;
        let mut parts = 0;
        while !missing.is_empty() {
            let requested = missing.clone();
            let done = &mut missing.start;
            let attempt = async {
                let answer = self.answer(&requested, Some(is_urgent), &mut renewals);
                let checked = answer.await?;
                let mut pass = |bytes: &[u8]| {
                    *done += bytes.len() as u64;
                    sink(bytes);
                };
                self.pass_on(checked, &mut pass).await
            };
            if retries.attempt(attempt).await?.is_none() {
                self.retries.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            parts += 1;
            if parts > PARTS_MAX {
                return Err(self.error(Kind::Unavailable, FEW_BYTES));
            }
        }
        Ok(())
    }

    /// Requests a range, and checks the answer. `pinned`: of the pinned object, and whether a reader waits.
    async fn answer(
        &self,
        range: &Range<u64>,
        pinned: Option<bool>,
        renewals: &mut u32,
    ) -> Result<Checked, Failure> {
        let permit = self.whole_answers.permit(&self.place).await?;
        let identity = pinned.is_some().then_some(&self.identity);
        let reply = self.attempt(range, identity, renewals).await?;
        self.note_refusal(&reply, pinned)?;
        self.whole_answers.check(&reply, range, &self.place)?;
        drop(permit);
        self.checked(reply, range, identity).await
    }

    /// Notes an answer of a server that wants fewer requests. A request that no reader waits for fails then.
    fn note_refusal(&self, reply: &Reply, pinned: Option<bool>) -> Result<(), Failure> {
        let (status, pause) = (reply.status(), reply.pause());
        let is_refused = status == StatusCode::TOO_MANY_REQUESTS
            || status == StatusCode::SERVICE_UNAVAILABLE && pause.is_some();
        let link = self.client.link();
        if status.is_success() {
            link.succeeded();
        }
        if is_refused {
            link.refused(pause);
            if pinned == Some(false) {
                let what = format_args!("the server answers {status}");
                return Err(self.error(Kind::Unavailable, what).refused().into());
            }
        }
        Ok(())
    }

    /// Joins two parts of one range, which must be of one version.
    fn joined(&self, mut first: Part, next: Part) -> Result<Part> {
        if first.validator != next.validator || first.size != next.size {
            let what = "the object was replaced while it was opened";
            return Err(self.error(Kind::Changed, what));
        }
        first.bytes.extend_from_slice(&next.bytes);
        Ok(first)
    }

    /// Size of an object, by the length of an answer whose body is not read, from a server that states it nowhere else.
    async fn stated_size(&self, validator: Option<&str>) -> Result<u64> {
        let mut renewals = 0;
        let mut retries = self.retry.start(&self.place);
        loop {
            let attempt = async {
                let reply = self.attempt(&(0..0), None, &mut renewals).await?;
                if reply.status() != StatusCode::OK {
                    return Err(reply.refused(&self.place).await);
                }
                if self::validator(&reply).as_deref() != validator {
                    let what = "the object was replaced while it was opened";
                    return Err(self.error(Kind::Changed, what).into());
                }
                let len = reply.header(CONTENT_LENGTH).map(str::parse);
                let what = "the server does not state the size of the object";
                match len {
                    Some(Ok(len)) => Ok::<u64, Failure>(len),
                    _ => Err(self.error(Kind::Unsupported, what).into()),
                }
            };
            if let Some(size) = retries.attempt(attempt).await? {
                return Ok(size);
            }
        }
    }

    /// Sends a request for a range, or for the whole object if the range is empty.
    async fn attempt(
        &self,
        range: &Range<u64>,
        pinned: Option<&Identity>,
        renewals: &mut u32,
    ) -> Result<Reply, Failure> {
        loop {
            let known = self.redirect().clone();
            let is_known = known.is_some();
            let redirects = match &known {
                Some((_, referer)) => Redirects::FollowFrom(referer.clone()),
                None if self.address.has_public_path() => Redirects::FollowWithPath,
                None => Redirects::Follow,
            };
            let target = match known {
                Some((url, _)) => Target {
                    url,
                    authorization: None,
                    pass: None,
                },
                None => self.address.target().await?,
            };
            if self.address.connects_with_first_request() {
                self.client.open_early(&target.url);
            }
            let request = Request {
                method: Method::GET,
                authorization: target.authorization,
                url: target.url.clone(),
                headers: &headers(range, pinned),
                content: Content::None,
                redirects,
                object: Some(&self.traced),
            };
            let start = Instant::now();
            let reply = self.client.send(request, &self.place).await?;
            self.client.link().answered_after(start.elapsed());
            let status = reply.status();
            if is_known && matches!(status.as_u16(), 400 | 401 | 403 | 404 | 410) {
                // A redirect holds a signature that expires.
                *self.redirect() = None;
                continue;
            }
            self.address.note_answer(&reply, target.pass.as_ref());
            let is_denied =
                matches!(status.as_u16(), 401 | 403) || self.address.denies_with() == Some(status);
            if is_denied {
                // The target of a redirect does not speak for the server that was asked. Its signature may have expired
                // before it answered.
                let is_redirected = !reply.is_of(&target.url);
                let denial = reply.denied(&self.place).await;
                let is_left = *renewals < RENEWALS_MAX;
                *renewals += 1;
                if is_left && (is_redirected || self.address.renew(&denial, target.pass.as_ref())) {
                    continue;
                }
                return Err(denial.error.into());
            }
            if let (false, Some(referer), true) = (is_known, &reply.referer, status.is_success()) {
                *self.redirect() = Some((reply.url.clone(), referer.clone()));
            }
            return Ok(reply);
        }
    }

    fn redirect(&self) -> std::sync::MutexGuard<'_, Option<(Url, String)>> {
        self.redirected
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks an answer, whose body is not read yet.
    async fn checked(
        &self,
        reply: Reply,
        range: &Range<u64>,
        pinned: Option<&Identity>,
    ) -> Result<Checked, Failure> {
        let changed = |what: &str| {
            let what = format_args!("the object was replaced since it was opened: {what}");
            Failure::Final(self.error(Kind::Changed, what))
        };
        let status = reply.status();
        let (stated, size) = match status {
            StatusCode::PARTIAL_CONTENT => {
                let stated = reply.header(CONTENT_RANGE).and_then(content_range);
                stated.ok_or_else(|| Failure::wrong("the server names no range in its answer"))?
            }
            StatusCode::OK => {
                let len = whole_answers::len(&reply, range);
                let len = len.ok_or_else(|| whole_answers::unsupported(&self.place))?;
                (0..len, Some(len))
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
            _ => return Err(reply.refused(&self.place).await),
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
            if size.is_some_and(|size| size != pinned.size) {
                return Err(changed("it has another size"));
            }
            let is_digest = pinned.is_digest();
            if !is_digest && validator.as_ref().is_some_and(|v| *v != pinned.validator) {
                return Err(changed("it has another ETag or time of modification"));
            }
            if !is_digest && validator.is_none() && !pinned.validator.is_empty() {
                return Err(Failure::wrong(
                    "the server does not name the version of its answer",
                ));
            }
        }
        // A part of the range is enough, and the next request continues after it.
        if stated.start != range.start || stated.end > range.end {
            return Err(Failure::wrong("the server answers with another range"));
        }
        Ok(Checked {
            reply,
            validator,
            size,
            len: stated.end - stated.start,
        })
    }

    /// Passes on the body of an answer as it arrives. If the server does not state its length, nothing is passed on before the
    /// end: only that shows that the range is the stated one.
    async fn pass_on(&self, checked: Checked, sink: Sink<'_>) -> Result<(), Failure> {
        let Checked { mut reply, len, .. } = checked;
        let short = || Failure::wrong("the answer is shorter than the server stated");
        let body = self.client.link().body();
        if reply.stated_len() != Some(len) {
            // Fits: a range of the caller, which allocates it.
            let bytes = reply.body(len as usize, &self.place).await?;
            if bytes.len() as u64 != len {
                return Err(short());
            }
            sink(&bytes);
            return Ok(());
        }
        let mut left = len;
        while let Some(bytes) = reply.next(&self.place).await? {
            body.arrived(bytes.len());
            left = left.checked_sub(bytes.len() as u64).ok_or_else(short)?;
            sink(&bytes);
        }
        match left {
            0 => Ok(()),
            _ => Err(short()),
        }
    }
}

impl Object for HttpObject {
    fn identity(&self) -> &Identity {
        &self.identity
    }

    fn read(&self, range: Range<u64>) -> Later<'_, Result<Vec<u8>>> {
        Box::pin(async {
            let mut bytes = Vec::new();
            self.stream(range, true, &mut |part| bytes.extend_from_slice(part))
                .await?;
            Ok(bytes)
        })
    }

    fn read_to<'a>(
        &'a self,
        range: Range<u64>,
        is_urgent: bool,
        sink: Sink<'a>,
    ) -> Later<'a, Result<()>> {
        Box::pin(self.stream(range, is_urgent, sink))
    }

    fn link(&self) -> &Arc<Link> {
        self.client.link()
    }

    fn traced(&self) -> &Traced {
        &self.traced
    }

    fn retries(&self) -> u64 {
        self.retries.load(Ordering::Relaxed)
    }
}

/// Headers of a request for a range of a pinned object.
fn headers(range: &Range<u64>, pinned: Option<&Identity>) -> Vec<(HeaderName, String)> {
    let mut headers = Vec::new();
    if let Some(last) = range.end.checked_sub(1).filter(|_| !range.is_empty()) {
        headers.push((RANGE, format!("bytes={}-{last}", range.start)));
    }
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

/// Range and size of `bytes START-LAST/SIZE`. The size may be unknown, `*`.
pub(crate) fn content_range(value: &str) -> Option<(Range<u64>, Option<u64>)> {
    let (unit, rest) = value.trim().split_once(' ')?;
    let (range, size) = rest.split_once('/')?;
    let (start, last) = range.split_once('-')?;
    let number = |text: &str| {
        let text = text.trim();
        // Not a sign.
        let is_number = text.bytes().all(|b| b.is_ascii_digit());
        text.parse::<u64>().ok().filter(|_| is_number)
    };
    let (start, last) = (number(start)?, number(last)?);
    let size = match size.trim() {
        "*" => None,
        size => Some(number(size)?),
    };
    let end = last.checked_add(1)?;
    let is_possible = start <= last && size.is_none_or(|size| end <= size);
    (unit.eq_ignore_ascii_case("bytes") && is_possible).then_some((start..end, size))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_ranges_are_not_accepted() {
        assert_eq!(
            content_range("bytes 0-4095/8192"),
            Some((0..4096, Some(8192)))
        );
        assert_eq!(content_range("bytes 5-9/*"), Some((5..10, None)));
        for bad in [
            "bytes 1-0/2",
            "bytes 0-2/2",
            "bytes 0-18446744073709551615/*",
            "bytes 0-18446744073709551616/*",
            "bytes +0-1/2",
            "bytes -1/2",
            "bytes 0-1",
            "items 0-1/2",
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
