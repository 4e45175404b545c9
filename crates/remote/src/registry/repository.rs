//! Repository of a registry: requests with tokens and repetitions, manifests.

use super::auth::Session;
use super::digest::digest;
use super::media;
use crate::client::json;
use crate::client::{Client, Content, Denial, RENEWALS_MAX, Redirects, Reply, Request};
use crate::error::{Error, Kind, Result};
use crate::location::{Reference, sha256_hex};
use crate::retry::{Failure, RetryPolicy};
use reqwest::header::{ACCEPT, HeaderName};
use reqwest::{Method, StatusCode, Url};
use serde_json::Value;
use std::sync::Arc;

/// Longest manifest that registries accept. Unit: bytes.
const MANIFEST_MAX: usize = 4 << 20;

/// Repository of a registry.
pub(crate) struct Registry {
    pub(crate) client: Arc<Client>,
    pub(crate) session: Arc<Session>,
    /// URL of the repository, with a slash at its end.
    base: Url,
    pub(crate) place: String,
    pub(crate) retry: RetryPolicy,
}

/// Request to a repository, which may be repeated.
pub(crate) struct Call<'a> {
    pub(crate) method: Method,
    pub(crate) url: Url,
    pub(crate) headers: &'a [(HeaderName, String)],
    pub(crate) content: Content,
}

/// Answer to a request.
pub(crate) enum Answer {
    Reply(Reply),
    /// Refusal for want of rights, 401 or 403.
    Denied(Denial),
}

impl Answer {
    /// Reply with a status that is a success or one of `known`.
    pub(crate) async fn expect(self, known: &[StatusCode], place: &str) -> Result<Reply, Failure> {
        match self {
            Self::Denied(denial) => Err(denial.error.into()),
            Self::Reply(reply) => {
                match reply.status().is_success() || known.contains(&reply.status()) {
                    true => Ok(reply),
                    false => Err(reply.refused(place).await),
                }
            }
        }
    }
}

/// Manifest as the registry has it.
pub(crate) struct Manifest {
    pub(crate) digest: String,
    pub(crate) object: Value,
    pub(crate) bytes: Vec<u8>,
}

impl Call<'_> {
    /// Request without headers and body.
    pub(crate) fn plain(method: Method, url: Url) -> Self {
        Self {
            method,
            url,
            headers: &[],
            content: Content::None,
        }
    }
}

impl Registry {
    /// Repository of a reference. Errors name `place`.
    pub(crate) fn new(
        client: Arc<Client>,
        reference: &Reference,
        place: &str,
        retry: RetryPolicy,
    ) -> Result<Self> {
        let base = base(reference, place)?;
        let session = Session::new(Arc::clone(&client), reference, &base, place);
        Ok(Self {
            session: Arc::new(session),
            client,
            base,
            place: place.to_owned(),
            retry,
        })
    }

    /// Error about this repository.
    pub(crate) fn error(&self, kind: Kind, what: impl std::fmt::Display) -> Error {
        Error::new(kind, &self.place, what)
    }

    /// URL of a path below the repository.
    pub(crate) fn url(&self, path: &str) -> Result<Url> {
        let url = self.base.join(path);
        url.map_err(|e| Error::new(Kind::Usage, &self.place, e))
    }

    /// Sends a request once. Credentials that the registry refuses are renewed. Other origins see none, and what they ask
    /// for is of no interest.
    pub(crate) async fn attempt(
        &self,
        call: &Call<'_>,
        renewals: &mut u32,
    ) -> Result<Answer, Failure> {
        loop {
            let is_registry = call.url.origin() == self.base.origin();
            let granted = match is_registry {
                true => self.session.authorization().await?,
                false => None,
            };
            let (authorization, pass) = granted.unzip();
            let request = Request {
                method: call.method.clone(),
                url: call.url.clone(),
                headers: call.headers,
                authorization,
                content: call.content.clone(),
                redirects: match is_registry {
                    true => Redirects::FollowWithPath,
                    false => Redirects::Follow,
                },
            };
            let reply = self.client.send(request, &self.place).await?;
            if reply.is_authorized() {
                self.session.accepted(pass.as_ref());
            }
            if !matches!(reply.status().as_u16(), 401 | 403) {
                return Ok(Answer::Reply(reply));
            }
            let is_of_registry = is_registry && reply.is_of(&call.url);
            let denial = reply.denied(&self.place).await;
            if is_of_registry
                && *renewals < RENEWALS_MAX
                && self.session.renew(&denial, pass.as_ref())
            {
                *renewals += 1;
                continue;
            }
            return Ok(Answer::Denied(denial));
        }
    }

    /// Sends a request until its status is a success or one of `known`.
    pub(crate) async fn send(&self, call: &Call<'_>, known: &[StatusCode]) -> Result<Reply> {
        let mut renewals = 0;
        let mut retries = self.retry.start(&self.place);
        loop {
            let attempt = async {
                let answer = self.attempt(call, &mut renewals).await?;
                answer.expect(known, &self.place).await
            };
            if let Some(reply) = retries.attempt(attempt).await? {
                return Ok(reply);
            }
        }
    }

    /// Reads a manifest by tag or digest. A digest is verified.
    pub(crate) async fn manifest(&self, version: &str) -> Result<Manifest> {
        let found = self.manifest_if_any(version).await?;
        found
            .ok_or_else(|| Error::missing(&self.place, "not found: the registry has no such image"))
    }

    /// Reads a manifest, or `None` if the registry has none of this tag or digest.
    pub(crate) async fn manifest_if_any(&self, version: &str) -> Result<Option<Manifest>> {
        let expected = sha256_hex(version).map(|_| version);
        self.document(&format!("manifests/{version}"), expected)
            .await
    }

    /// Reads the JSON document at a path, or `None` if there is none. It must match a digest if one is `expected`.
    pub(crate) async fn document(
        &self,
        path: &str,
        expected: Option<&str>,
    ) -> Result<Option<Manifest>> {
        let headers = [(ACCEPT, media::MANIFESTS.to_owned())];
        let call = Call {
            headers: &headers,
            ..Call::plain(Method::GET, self.url(path)?)
        };
        let Some(bytes) = self
            .bytes(&call, MANIFEST_MAX, expected, "manifest")
            .await?
        else {
            return Ok(None);
        };
        let object = json::parse(&bytes, &self.place, "manifest")?;
        Ok(Some(Manifest {
            digest: digest(&bytes),
            object,
            bytes,
        }))
    }

    /// Reads a blob of at most `limit` bytes, which must match its digest.
    pub(crate) async fn blob(&self, digest: &str, limit: usize) -> Result<Vec<u8>> {
        let call = Call::plain(Method::GET, self.url(&format!("blobs/{digest}"))?);
        let bytes = self.bytes(&call, limit, Some(digest), "blob").await?;
        bytes.ok_or_else(|| {
            Error::missing(
                &self.place,
                format_args!("not found: the registry lacks the blob {digest}"),
            )
        })
    }

    /// Reads at most `limit` bytes, which must match a digest if one is `expected`. `None` if there is nothing.
    async fn bytes(
        &self,
        call: &Call<'_>,
        limit: usize,
        expected: Option<&str>,
        name: &str,
    ) -> Result<Option<Vec<u8>>> {
        let mut renewals = 0;
        let mut retries = self.retry.start(&self.place);
        loop {
            let attempt = async {
                let answer = self.attempt(call, &mut renewals).await?;
                let known = [StatusCode::NOT_FOUND];
                let reply = answer.expect(&known, &self.place).await?;
                if reply.status() == StatusCode::NOT_FOUND {
                    return Ok(None);
                }
                let body = reply.body(limit, &self.place).await?;
                if expected.is_some_and(|expected| expected != digest(&body)) {
                    let what = format!("the {name} does not match its digest");
                    return Err(Failure::wrong(what));
                }
                Ok(Some(body))
            };
            if let Some(body) = retries.attempt(attempt).await? {
                return Ok(body);
            }
        }
    }
}

/// URL of a repository. Registries on this machine have no certificates.
fn base(reference: &Reference, place: &str) -> Result<Url> {
    let host = match reference.registry.as_str() {
        "docker.io" => "registry-1.docker.io",
        registry => registry,
    };
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    let is_local = matches!(name, "localhost" | "127.0.0.1" | "[::1]");
    let scheme = if is_local { "http" } else { "https" };
    let url = format!("{scheme}://{host}/v2/{}/", reference.name);
    Url::parse(&url).map_err(|e| Error::new(Kind::Usage, place, e))
}
