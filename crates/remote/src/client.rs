//! HTTP client: one request and its redirects, without the credentials of the first host.

use crate::error::{Error, Kind, Result};
use crate::feed::Feed;
use crate::retry::{Failure, retry_after};
use base64::Engine;
use bytes::Bytes;
use reqwest::header::{
    ACCEPT_ENCODING, AUTHORIZATION, DATE, HeaderMap, HeaderName, HeaderValue, LOCATION, RETRY_AFTER,
};
use reqwest::redirect::Policy;
use reqwest::{Method, StatusCode, Url};
use serde_json::Value;
use std::error::Error as _;
use std::fmt::Write as _;
use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Time to connect to a server, TLS included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Time without a byte after which a request is repeated.
const IDLE_TIMEOUT: Duration = Duration::from_secs(15);

/// Longest explanation of a refused request. Unit: bytes.
const REASON_MAX: usize = 64 << 10;

/// Number of redirects that are followed.
const REDIRECTS_MAX: usize = 5;

/// Number of times that one operation renews its credentials.
pub(crate) const RENEWALS_MAX: u32 = 2;

/// Clients for plain HTTP and for TLS, built on first use.
#[derive(Default)]
pub(crate) struct Client {
    /// Requests may take longer than [`IDLE_TIMEOUT`], because they send a body. Their callers watch them.
    sends_bodies: bool,
    /// True once a server has answered.
    has_answer: AtomicBool,
    plain: OnceLock<Result<reqwest::Client, String>>,
    tls: OnceLock<Result<reqwest::Client, String>>,
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
}

impl Client {
    /// Client for uploads, whose requests have no time limit of their own.
    pub(crate) fn for_uploads() -> Self {
        Self {
            sends_bodies: true,
            ..Self::default()
        }
    }

    /// Client for a URL. Only TLS reads the certificates of the host.
    fn of(&self, url: &Url, place: &str) -> Result<&reqwest::Client> {
        let tls = url.scheme() == "https";
        let slot = if tls { &self.tls } else { &self.plain };
        let idle = (!self.sends_bodies).then_some(IDLE_TIMEOUT);
        let client = slot.get_or_init(|| build(tls, idle));
        client
            .as_ref()
            .map_err(|e| Error::new(Kind::Unavailable, place, e))
    }

    /// Sends a request and follows its redirects. Errors name `place`.
    ///
    /// Any status is a reply; [`Reply::refused`] turns it into a failure.
    pub(crate) async fn send(&self, request: Request<'_>, place: &str) -> Result<Reply, Failure> {
        let mut url = request.url;
        let mut authorization = request.authorization;
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
            let mut builder = self
                .of(&url, place)?
                .request(request.method.clone(), url.clone())
                .headers(headers);
            builder = match &request.content {
                Content::None => builder,
                Content::Bytes(bytes) => builder.body(bytes.clone()),
                Content::Range(feed) => builder.body(reqwest::Body::wrap(feed.body())),
            };
            let inner = builder.send().await.map_err(|e| {
                let is_unknown = e.is_connect() && !self.has_answer.load(Relaxed);
                broken(e, place, is_unknown)
            })?;
            self.has_answer.store(true, Relaxed);
            if !inner.status().is_redirection() || inner.status() == StatusCode::NOT_MODIFIED {
                return Ok(Reply { inner, url });
            }
            let next = inner.headers().get(LOCATION).and_then(|v| v.to_str().ok());
            let next = next.and_then(|next| url.join(next).ok());
            let next = next.ok_or_else(|| refuse(place, "the server redirects to nowhere"))?;
            if url.scheme() == "https" && next.scheme() != "https" {
                return Err(refuse(place, "the server redirects from https to http").into());
            }
            if next.origin() != url.origin() {
                authorization = None;
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

    /// Length of the body that the server states. Unit: bytes.
    pub(crate) fn stated_len(&self) -> Option<u64> {
        self.inner.content_length()
    }

    /// Failure for a status that is not a success.
    pub(crate) fn refused(&self, place: &str) -> Failure {
        let status = self.status();
        let what = format!("the server answers {status}");
        match status.as_u16() {
            408 | 425 | 429 | 500 | 502 | 503 | 504 => Failure::Transient {
                what,
                pause: self
                    .header(RETRY_AFTER)
                    .map(|value| retry_after(value, self.header(DATE))),
                is_unknown: false,
            },
            401 => refuse(place, format_args!("access denied: {what}")).into(),
            // Stores hide names that do not exist from those who may not list them.
            403 => Error::missing(place, format_args!("access denied: {what}")).into(),
            404 | 410 => Error::missing(place, format_args!("not found: {what}")).into(),
            _ => refuse(place, what).into(),
        }
    }

    /// Failure for a status that is not a success, with the reason in the body of a registry's answer.
    pub(crate) async fn refused_with_reason(self, place: &str) -> Failure {
        let failure = self.refused(place);
        let Failure::Final(e) = failure else {
            return failure;
        };
        let body = self.body(REASON_MAX, place).await.unwrap_or_default();
        let object: Value = serde_json::from_slice(&body).unwrap_or_default();
        let reason = &object["errors"][0];
        let reason = reason["message"].as_str().or(reason["code"].as_str());
        match reason.filter(|reason| !reason.is_empty()) {
            Some(reason) => {
                let reason: String = reason.escape_debug().take(200).collect();
                refuse(place, format_args!("{}: {reason}", e.what())).into()
            }
            None => e.into(),
        }
    }

    /// Reads the body, which has at most `limit` bytes.
    pub(crate) async fn body(mut self, limit: usize, place: &str) -> Result<Vec<u8>, Failure> {
        // Fits: `limit` does.
        let stated = self.stated_len().unwrap_or(0).min(limit as u64) as usize;
        let mut body = Vec::with_capacity(stated);
        while let Some(part) = self
            .inner
            .chunk()
            .await
            .map_err(|e| broken(e, place, false))?
        {
            if body.len() + part.len() > limit {
                return Err(Failure::transient(
                    "the server sends more than was asked for",
                ));
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

fn build(tls: bool, idle: Option<Duration>) -> Result<reqwest::Client, String> {
    // Fails if the program has chosen a provider already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut builder = reqwest::Client::builder()
        .user_agent(concat!("tuff/", env!("CARGO_PKG_VERSION")))
        .redirect(Policy::none())
        // One connection per request in flight: ranges share no window of HTTP/2.
        .http1_only()
        .connect_timeout(CONNECT_TIMEOUT);
    if let Some(idle) = idle {
        builder = builder.read_timeout(idle);
    }
    if !tls {
        builder = builder.tls_certs_only([]);
    }
    builder.build().map_err(|e| chain(&e))
}

/// Failure of the connection. Certificates that are not trusted stay so.
fn broken(e: reqwest::Error, place: &str, is_unknown: bool) -> Failure {
    let what = chain(&e);
    match what.contains("certificate") {
        true => refuse(place, what).into(),
        false => Failure::Transient {
            what,
            pause: None,
            is_unknown,
        },
    }
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
