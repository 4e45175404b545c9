//! HTTP client: one request and its redirects, without the credentials of the first host.

pub(crate) mod feed;
pub(crate) mod json;
pub(crate) mod link;
pub(crate) mod origin;
pub(crate) mod renewal;
mod spare;

use crate::client::feed::Feed;
use crate::client::link::Link;
use crate::client::spare::{Home, SpareLayer};
use crate::error::{Error, Kind, Result};
use crate::retry::{Failure, retry_after};
use crate::trace::{Recorded, Trace, Traced};
use base64::Engine;
use bytes::Bytes;
use reqwest::header::{
    ACCEPT_ENCODING, AUTHORIZATION, DATE, HeaderMap, HeaderName, HeaderValue, LOCATION, RANGE,
    REFERER, RETRY_AFTER, WWW_AUTHENTICATE,
};
use reqwest::redirect::Policy;
use reqwest::{Method, StatusCode, Url};
use serde_json::Value;
use std::error::Error as _;
use std::fmt::Write as _;
use std::io::{self, ErrorKind};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Time to connect to a server, TLS included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Time without a byte after which a request is repeated.
const IDLE_TIMEOUT: Duration = Duration::from_secs(15);

/// Time without an answer after which a server is out of reach, if there is another way to go on.
const REACH_TIME: Duration = Duration::from_secs(1);

/// Longest explanation of a refused request. Unit: bytes.
const REASON_MAX: usize = 64 << 10;

/// Time for the explanation of a refused request.
const REASON_TIMEOUT: Duration = Duration::from_secs(2);

/// Number of characters of an explanation that are shown.
const REASON_SHOWN: usize = 200;

/// Memory for a body that the server has announced but not sent: that of most ranges. Unit: bytes.
const ALLOCATED_MAX: u64 = 2 << 20;

/// Number of redirects that are followed.
const REDIRECTS_MAX: usize = 5;

/// Number of times that one operation renews its credentials.
pub(crate) const RENEWALS_MAX: u32 = 4;

/// Clients for this machine, for plain HTTP and for TLS, built on first use.
#[derive(Default)]
pub(crate) struct Client {
    /// Requests may take longer than [`IDLE_TIMEOUT`], because they send a body. Their callers watch them.
    sends_bodies: bool,
    /// True once a server has answered.
    has_answer: AtomicBool,
    /// Number of answers, and of parts of their bodies. Those of servers that fail do not count.
    progress: Arc<AtomicU64>,
    link: Arc<Link>,
    trace: Arc<Trace>,
    local: OnceLock<Result<reqwest::Client, String>>,
    plain: OnceLock<Result<reqwest::Client, String>>,
    tls: OnceLock<Result<reqwest::Client, String>>,
    /// Client of the server of the image, if connections to it were opened early.
    home: OnceLock<Option<Home>>,
}

/// Result of requests to a server that may be out of reach.
pub(crate) enum Reached<T> {
    Answer(Result<T>),
    /// Reason why there is no answer.
    Outage(String),
}

/// Request to a server.
pub(crate) struct Request<'a> {
    pub(crate) method: Method,
    pub(crate) url: Url,
    /// Headers that every host may see.
    pub(crate) headers: &'a [(HeaderName, String)],
    /// Value of the header `Authorization`, for the host of `url` only.
    pub(crate) authorization: Option<String>,
    pub(crate) content: Content,
    pub(crate) redirects: Redirects,
    /// Object whose range is requested, for the trace.
    pub(crate) object: Option<&'a Arc<Traced>>,
}

/// Reaction to redirects.
#[derive(Clone, Debug)]
pub(crate) enum Redirects {
    /// They are refused: the request holds credentials that no header separates from the rest.
    Refuse,
    /// They are followed. `Referer` names the origin.
    Follow,
    /// They are followed. `Referer` names the path as well, which some storage of registries expects.
    FollowWithPath,
    /// They are followed. The URL is the target of an earlier redirect, with its `Referer`.
    FollowFrom(String),
}

/// Body of a request.
#[derive(Clone, Default)]
pub(crate) enum Content {
    #[default]
    None,
    Bytes(Bytes),
    /// Range of a store, which is read as the connection takes it.
    Range(Feed),
}

/// Value of `Authorization` for a user name and a password.
pub(crate) fn basic(user: &str, password: &str) -> String {
    let encoded = base64::engine::general_purpose::STANDARD.encode(format!("{user}:{password}"));
    format!("Basic {encoded}")
}

/// Answer of a server, whose body is not read yet.
pub(crate) struct Reply {
    inner: reqwest::Response,
    /// URL that the answer came from, after redirects.
    pub(crate) url: Url,
    /// `Referer` of the last request. `None` without a redirect.
    pub(crate) referer: Option<String>,
    /// Credentials of the request, which a server may repeat in its explanation.
    secrets: Vec<String>,
    /// Counter of the client.
    progress: Arc<AtomicU64>,
    recorded: Recorded,
}

/// Refusal of a request for want of rights, or of a login that has expired.
pub(crate) struct Denial {
    pub(crate) status: StatusCode,
    /// Values of `WWW-Authenticate`.
    pub(crate) challenges: Vec<String>,
    /// Beginning of the body.
    pub(crate) body: String,
    /// The refusal as a failure of the request.
    pub(crate) error: Error,
}

impl Denial {
    /// True if the server says that the credentials have expired or are unknown, rather than that they give no right.
    pub(crate) fn is_of_login(&self) -> bool {
        /// Parts of the explanations of registries and buckets, in lower case.
        const EXPIRED: [&str; 7] = [
            "expired",
            "reauthenticate",
            "expiredtoken",
            "invalidtoken",
            "invalidaccesskeyid",
            "tokenrefreshrequired",
            "signaturedoesnotmatch",
        ];
        let body = self.body.to_ascii_lowercase();
        self.status == StatusCode::UNAUTHORIZED || EXPIRED.iter().any(|word| body.contains(word))
    }
}

impl Client {
    /// Client for uploads, whose requests have no time limit of their own.
    pub(crate) fn for_uploads() -> Self {
        Self {
            sends_bodies: true,
            ..Self::default()
        }
    }

    /// Link to the server.
    pub(crate) fn link(&self) -> &Arc<Link> {
        &self.link
    }

    /// Trace of all requests.
    pub(crate) fn trace(&self) -> &Trace {
        &self.trace
    }

    /// Runs requests of this client unless the server is out of reach: if nothing but failures of servers arrives for
    /// [`REACH_TIME`].
    pub(crate) async fn reach<T>(&self, requests: impl Future<Output = Result<T>>) -> Reached<T> {
        let mut requests = std::pin::pin!(requests);
        loop {
            let before = self.progress.load(Relaxed);
            match tokio::time::timeout(REACH_TIME, &mut requests).await {
                Ok(Err(e)) if e.is_outage() => return Reached::Outage(e.what().to_owned()),
                Ok(result) => return Reached::Answer(result),
                Err(_) if self.progress.load(Relaxed) == before => {
                    let what = "it does not answer within a second";
                    return Reached::Outage(what.to_owned());
                }
                Err(_) => {}
            }
        }
    }

    /// Opens connections to a server early, so that the requests that follow the first answer find them. Only the first call
    /// has an effect.
    pub(crate) fn open_early(&self, url: &Url) {
        let (tls, is_local) = kind(url);
        let idle = (!self.sends_bodies).then_some(IDLE_TIMEOUT);
        let build = |layer| build(tls, is_local, idle, Some(layer));
        // Without it, requests connect.
        self.home.get_or_init(|| Home::open(url, build).ok());
    }

    /// Client for a URL. Only TLS reads the certificates of the host. No proxy leads to this machine, whose registries have
    /// no TLS: it would see their passwords.
    fn client_for(&self, url: &Url, place: &str) -> Result<&reqwest::Client> {
        let home = self.home.get().and_then(Option::as_ref);
        if let Some(home) = home.filter(|home| home.serves(url)) {
            return Ok(&home.client);
        }
        let (tls, is_local) = kind(url);
        let slot = match (tls, is_local) {
            (true, _) => &self.tls,
            (false, true) => &self.local,
            (false, false) => &self.plain,
        };
        let idle = (!self.sends_bodies).then_some(IDLE_TIMEOUT);
        let client = slot.get_or_init(|| build(tls, is_local, idle, None));
        client
            .as_ref()
            .map_err(|e| Error::new(Kind::Unavailable, place, e))
    }

    /// Sends a request and follows its redirects. Errors name `place`.
    ///
    /// Credentials stay with the origin of the request: other origins see neither `authorization` nor the query.
    ///
    /// Any status is a reply; [`Reply::refused`] turns it into a failure.
    pub(crate) async fn send(&self, request: Request<'_>, place: &str) -> Result<Reply, Failure> {
        let Request {
            mut method,
            mut url,
            mut authorization,
            mut content,
            ..
        } = request;
        let mut referer = match &request.redirects {
            Redirects::FollowFrom(referer) => Some(referer.clone()),
            _ => None,
        };
        let mut secrets = origin::secrets(&url);
        secrets.extend(authorization.iter().flat_map(|value| secrets_of(value)));
        if let (Redirects::Refuse, Content::Bytes(form)) = (&request.redirects, &content) {
            let mut sent = url.clone();
            sent.set_query(std::str::from_utf8(form).ok());
            secrets.extend(origin::secrets(&sent));
        }
        for _ in 0..=REDIRECTS_MAX {
            let mut headers = HeaderMap::new();
            for (name, value) in request.headers {
                headers.insert(name, header(value, place)?);
            }
            // A compressed body has other ranges.
            headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
            if let Some(value) = &authorization {
                let mut value = header(value, place)?;
                value.set_sensitive(true);
                headers.insert(AUTHORIZATION, value);
            }
            if let Some(value) = &referer {
                headers.insert(REFERER, header(value, place)?);
            }
            let mut builder = self
                .client_for(&url, place)?
                .request(method.clone(), url.clone())
                .headers(headers);
            builder = match &content {
                Content::None => builder,
                Content::Bytes(bytes) => builder.body(bytes.clone()),
                Content::Range(feed) => builder.body(reqwest::Body::wrap(feed.body())),
            };
            let range = request.headers.iter().find(|(name, _)| *name == RANGE);
            let range = range.map(|(_, value)| value.as_str());
            let recorded = self
                .trace
                .begin((&url, referer.is_some()), range, request.object);
            let inner = builder.send().await.map_err(|e| {
                let is_unknown = e.is_connect() && !self.has_answer.load(Relaxed);
                broken(e, place, is_unknown)
            })?;
            recorded.note_answer(inner.status().as_u16());
            self.has_answer.store(true, Relaxed);
            if !inner.status().is_server_error() {
                self.progress.fetch_add(1, Relaxed);
            }
            if !matches!(inner.status().as_u16(), 301..=303 | 307 | 308) {
                return Ok(Reply {
                    inner,
                    url,
                    referer,
                    secrets,
                    progress: Arc::clone(&self.progress),
                    recorded,
                });
            }
            if matches!(request.redirects, Redirects::Refuse) {
                let what = "the server redirects a request with credentials";
                return Err(refuse(place, what).into());
            }
            let location = inner.headers().get(LOCATION).and_then(|v| v.to_str().ok());
            if let (None, Some(region)) = (location, bucket_region(&inner)) {
                let what = format_args!("the bucket is in another region: set AWS_REGION={region}");
                return Err(refuse(place, what).into());
            }
            let next = origin::next(&url, location)
                .map_err(|why| refuse(place, format_args!("the server redirects {why}")))?;
            let is_other = next.origin() != url.origin();
            if is_other {
                authorization = None;
            }
            referer = Some(match (&request.redirects, referer) {
                // The first origin alone is named, so that no target learns the URL of another one.
                (_, Some(referer)) => referer,
                (Redirects::FollowWithPath, None) => origin::referer(&url),
                (_, None) => format!("{}/", url.origin().ascii_serialization()),
            });
            if inner.status() == StatusCode::SEE_OTHER && method != Method::HEAD {
                method = Method::GET;
                content = Content::None;
            }
            url = next;
        }
        Err(refuse(place, "the server redirects more than 5 times").into())
    }
}

impl Reply {
    /// Status of the answer.
    pub(crate) fn status(&self) -> StatusCode {
        self.inner.status()
    }

    /// Value of a header, if it is text.
    pub(crate) fn header(&self, name: HeaderName) -> Option<&str> {
        self.inner.headers().get(name)?.to_str().ok()
    }

    /// Values of a header that may occur several times.
    pub(crate) fn headers(&self, name: HeaderName) -> impl Iterator<Item = &str> {
        let values = self.inner.headers().get_all(name).into_iter();
        values.filter_map(|value| value.to_str().ok())
    }

    /// Time that the server asks to wait for.
    pub(crate) fn pause(&self) -> Option<Duration> {
        let value = self.header(RETRY_AFTER)?;
        Some(retry_after(value, self.header(DATE)))
    }

    /// Length of the body that the server states. Unit: bytes.
    pub(crate) fn stated_len(&self) -> Option<u64> {
        self.inner.content_length()
    }

    /// True if a redirect led here, so that another server may have answered than the one that was asked.
    pub(crate) fn is_redirected(&self) -> bool {
        self.referer.is_some()
    }

    /// True if the server has accepted the credentials of the request: it answers it, or has redirected it.
    pub(crate) fn is_authorized(&self) -> bool {
        let status = self.status();
        let is_answer = matches!(status.as_u16(), 404 | 405 | 409 | 412 | 413 | 416);
        status.is_success() || is_answer || self.is_redirected()
    }

    /// True if the registry that was asked at `url` has answered itself, also below another path of its API.
    pub(crate) fn is_of(&self, url: &Url) -> bool {
        let is_api = self.url.path().starts_with("/v2/");
        !self.is_redirected() || self.url.origin() == url.origin() && is_api
    }

    /// Failure for a status that is not a success, with the reason that the server gives.
    pub(crate) async fn refused(self, place: &str) -> Failure {
        let status = self.status();
        match status.as_u16() {
            408 | 425 | 429 | 500 | 502 | 503 | 504 => Failure::Transient {
                what: format!("the server answers {status}"),
                pause: self.pause(),
                is_unknown: false,
                is_outage: status.is_server_error(),
            },
            _ => self.denied(place).await.error.into(),
        }
    }

    /// Refusal of a request, with the reason that the server gives.
    pub(crate) async fn denied(self, place: &str) -> Denial {
        let status = self.status();
        let mut what = format!("the server answers {status}");
        if self.is_redirected() {
            let _ = write!(what, " at {}", self.url.origin().ascii_serialization());
        }
        let challenges = self.headers(WWW_AUTHENTICATE).map(str::to_owned).collect();
        let secrets = self.secrets.clone();
        let read = tokio::time::timeout(REASON_TIMEOUT, self.body(REASON_MAX, place)).await;
        let body = read.ok().and_then(Result::ok).unwrap_or_default();
        let body = String::from_utf8_lossy(&body).into_owned();
        let is_secret = |text: &str| secrets.iter().any(|secret| text.contains(secret));
        if let Some(reason) = reason(&body).filter(|reason| !is_secret(reason)) {
            let reason = reason.chars().take(REASON_SHOWN).collect::<String>();
            let _ = write!(what, ": {}", reason.escape_debug());
        }
        let error = match status.as_u16() {
            401 => refuse(place, format_args!("access denied: {what}")),
            // Stores hide names that do not exist from those who may not list them.
            403 => Error::missing(place, format_args!("access denied: {what}")),
            404 | 410 => Error::missing(place, format_args!("not found: {what}")),
            500.. => refuse(place, what).outage(),
            _ => refuse(place, what),
        };
        Denial {
            status,
            challenges,
            body,
            error,
        }
    }

    /// Reads the next bytes of the body. `None` at its end.
    pub(crate) async fn next(&mut self, place: &str) -> Result<Option<Bytes>, Failure> {
        let next = self.inner.chunk().await;
        let next = next.map_err(|e| broken(e, place, false))?;
        self.recorded.arrived(next.as_ref().map_or(0, Bytes::len));
        if next.is_some() && !self.inner.status().is_server_error() {
            self.progress.fetch_add(1, Relaxed);
        }
        Ok(next)
    }

    /// Reads the body, which has at most `limit` bytes.
    pub(crate) async fn body(mut self, limit: usize, place: &str) -> Result<Vec<u8>, Failure> {
        let stated = self.stated_len().unwrap_or(0).min(limit as u64);
        // Fits: small. The rest is allocated as it arrives.
        let mut body = Vec::with_capacity(stated.min(ALLOCATED_MAX) as usize);
        while let Some(part) = self.next(place).await? {
            if body.len() + part.len() > limit {
                return Err(Failure::wrong("the server sends more than was asked for"));
            }
            body.extend_from_slice(&part);
        }
        Ok(body)
    }
}

fn header(value: &str, place: &str) -> Result<HeaderValue> {
    HeaderValue::from_str(value).map_err(|_| {
        Error::new(
            Kind::Usage,
            place,
            "a credential or header holds control characters",
        )
    })
}

fn refuse(place: &str, what: impl std::fmt::Display) -> Error {
    Error::new(Kind::Unavailable, place, what)
}

/// Words of a server about a refusal: those of a registry or of a bucket.
fn reason(body: &str) -> Option<String> {
    let object: Value = serde_json::from_str(body).unwrap_or_default();
    let error = &object["errors"][0];
    let known = [&error["message"], &error["code"], &object["message"]];
    let known = known.iter().find_map(|text| text.as_str());
    let element = |name: &str| {
        let (_, rest) = body.split_once(&format!("<{name}>"))?;
        rest.split_once(&format!("</{name}>")).map(|(text, _)| text)
    };
    let known = known.or_else(|| element("Message"));
    let known = known.or_else(|| element("Code"));
    known
        .filter(|text| !text.trim().is_empty())
        .map(str::to_owned)
}

/// Region of a bucket that answers a request for another one.
fn bucket_region(reply: &reqwest::Response) -> Option<&str> {
    let region = reply.headers().get("x-amz-bucket-region")?.to_str().ok()?;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
    (region.len() < 64 && region.chars().all(is_plain)).then_some(region)
}

/// Credentials in a value of `Authorization`: as they are, and the password of Basic.
fn secrets_of(authorization: &str) -> Vec<String> {
    let (scheme, value) = authorization.split_once(' ').unwrap_or(("", authorization));
    let mut secrets = vec![value.to_owned()];
    if scheme == "Basic" {
        let bytes = base64::engine::general_purpose::STANDARD.decode(value);
        let text = String::from_utf8(bytes.unwrap_or_default()).unwrap_or_default();
        let password = text
            .split_once(':')
            .map(|(_, password)| password.to_owned());
        secrets.extend(password.filter(|password| !password.is_empty()));
    }
    secrets
}

/// Builder of a client that follows no redirect by itself.
pub(crate) fn builder() -> reqwest::ClientBuilder {
    // Fails if the program has chosen a provider already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let builder = reqwest::Client::builder()
        .user_agent(concat!("tuff/", env!("CARGO_PKG_VERSION")))
        .redirect(Policy::none())
        // One connection per request in flight: ranges share no window of HTTP/2.
        .http1_only();
    // The client takes an asterisk for names of hosts, but not for addresses.
    match excludes_all(|name| std::env::var(name).ok()) {
        true => builder.no_proxy(),
        false => builder,
    }
}

/// True if `NO_PROXY` names all hosts.
fn excludes_all(variable: impl Fn(&str) -> Option<String>) -> bool {
    let hosts = variable("NO_PROXY").or_else(|| variable("no_proxy"));
    hosts.is_some_and(|hosts| hosts.split(',').any(|host| host.trim() == "*"))
}

/// Kind of client for a URL: whether it has TLS, or leads to this machine without.
fn kind(url: &Url) -> (bool, bool) {
    let tls = url.scheme() == "https";
    (tls, !tls && origin::is_loopback(url))
}

fn build(
    tls: bool,
    is_local: bool,
    idle: Option<Duration>,
    layer: Option<SpareLayer>,
) -> Result<reqwest::Client, String> {
    let mut builder = builder().connect_timeout(CONNECT_TIMEOUT);
    if is_local {
        builder = builder.no_proxy();
    }
    if let Some(idle) = idle {
        builder = builder.read_timeout(idle);
    }
    if !tls {
        builder = builder.tls_certs_only([]);
    }
    if let Some(layer) = layer {
        builder = builder.connector_layer(layer);
    }
    builder.build().map_err(|e| chain(&e))
}

/// Failure of the connection. Certificates that are not trusted stay so.
fn broken(e: reqwest::Error, place: &str, is_unknown: bool) -> Failure {
    let what = chain(&e);
    match () {
        () if what.contains("certificate") => refuse(place, what).into(),
        () if breaks_protocol(&e) => Failure::wrong(what),
        () => Failure::Transient {
            what,
            pause: None,
            is_unknown,
            is_outage: true,
        },
    }
}

/// True if the server sends what is no HTTP, rather than nothing.
fn breaks_protocol(e: &reqwest::Error) -> bool {
    let mut cause = e.source();
    while let Some(e) = cause {
        let is_parse = e.downcast_ref().is_some_and(hyper::Error::is_parse);
        if is_parse || e.downcast_ref().is_some_and(is_invalid) {
            return true;
        }
        cause = e.source();
    }
    false
}

/// True for lengths of chunks that are none, and TLS that is none.
fn is_invalid(e: &io::Error) -> bool {
    let inner = e.get_ref().and_then(|e| e.downcast_ref());
    matches!(e.kind(), ErrorKind::InvalidInput | ErrorKind::InvalidData)
        || inner.is_some_and(is_invalid)
}

/// An error of the client with its causes, without the URL.
fn chain(e: &reqwest::Error) -> String {
    let mut text = match () {
        () if e.is_timeout() => "the server does not answer in time".to_owned(),
        () if e.is_connect() => "cannot connect".to_owned(),
        () => "the connection broke".to_owned(),
    };
    let mut cause = e.source();
    let mut last = String::new();
    while let Some(e) = cause {
        last = e.to_string();
        cause = e.source();
    }
    if !last.is_empty() {
        let _ = write!(text, ": {last}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_asterisk_in_no_proxy_names_all_hosts() {
        let excludes = |value: &'static str| {
            excludes_all(|name| (name == "NO_PROXY").then(|| value.to_owned()))
        };
        assert!(excludes("*") && excludes("a, *"));
        assert!(!excludes("") && !excludes("*.a") && !excludes_all(|_| None));
        assert!(excludes_all(
            |name| (name == "no_proxy").then(|| "*".to_owned())
        ));
    }

    #[test]
    fn the_reason_of_a_refusal_is_that_of_registries_and_buckets() {
        let of = |body: &str| reason(body).unwrap_or_default();
        assert_eq!(of(r#"{"errors":[{"code":"C","message":"m"}]}"#), "m");
        assert_eq!(of(r#"{"errors":[{"code":"C"}]}"#), "C");
        assert_eq!(of("<Error><Code>C</Code><Message>m</Message></Error>"), "m");
        assert_eq!(of("<Error><Code>C</Code></Error>"), "C");
        for nothing in ["", "{", "[]", "<Message>", r#"{"errors":{"message":1}}"#] {
            assert_eq!(of(nothing), "", "{nothing}");
        }
    }
}
