//! Repository of a registry: requests with tokens and repetitions, manifests.

use super::auth::Session;
use super::digest::digest;
use super::media;
use crate::client::{Client, Content, RENEWALS_MAX, Reply, Request};
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
        Ok(Self {
            session: Arc::new(Session::new(Arc::clone(&client), reference, place)),
            client,
            base: base(reference, place)?,
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

    /// Sends a request once. A token that the registry refuses is renewed. Hosts other than that of the registry see no
    /// token.
    pub(crate) async fn attempt(
        &self,
        call: &Call<'_>,
        renewals: &mut u32,
    ) -> Result<Reply, Failure> {
        loop {
            let is_registry = call.url.origin() == self.base.origin();
            let authorization = match is_registry {
                true => self.session.authorization().await?,
                false => None,
            };
            let request = Request {
                method: call.method.clone(),
                url: call.url.clone(),
                headers: call.headers,
                authorization: authorization.clone(),
                content: call.content.clone(),
            };
            let reply = self.client.send(request, &self.place).await?;
            let is_denied = reply.status() == StatusCode::UNAUTHORIZED;
            let used = authorization.as_deref();
            if is_denied && *renewals < RENEWALS_MAX && self.session.renew(&reply, used) {
                *renewals += 1;
                continue;
            }
            return Ok(reply);
        }
    }

    /// Sends a request until its status is a success or one of `known`.
    pub(crate) async fn send(&self, call: &Call<'_>, known: &[StatusCode]) -> Result<Reply> {
        let mut renewals = 0;
        let mut retries = self.retry.start(&self.place);
        loop {
            let attempt = async {
                let reply = self.attempt(call, &mut renewals).await?;
                match reply.status().is_success() || known.contains(&reply.status()) {
                    true => Ok(reply),
                    false => Err(reply.refused(&self.place)),
                }
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
        let wanted = sha256_hex(version).map(|_| version);
        self.document(&format!("manifests/{version}"), wanted).await
    }

    /// Reads the JSON document at a path, or `None` if there is none. It must match a digest if one is `wanted`.
    pub(crate) async fn document(
        &self,
        path: &str,
        wanted: Option<&str>,
    ) -> Result<Option<Manifest>> {
        let headers = [(ACCEPT, media::MANIFESTS.to_owned())];
        let call = Call {
            headers: &headers,
            ..Call::plain(Method::GET, self.url(path)?)
        };
        let Some(bytes) = self.bytes(&call, MANIFEST_MAX, wanted, "manifest").await? else {
            return Ok(None);
        };
        let object = serde_json::from_slice(&bytes)
            .map_err(|_| self.error(Kind::Unsupported, "the manifest is not JSON"))?;
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

    /// Reads at most `limit` bytes, which must match a digest if one is `wanted`. `None` if there is nothing.
    async fn bytes(
        &self,
        call: &Call<'_>,
        limit: usize,
        wanted: Option<&str>,
        name: &str,
    ) -> Result<Option<Vec<u8>>> {
        let mut renewals = 0;
        let mut retries = self.retry.start(&self.place);
        loop {
            let attempt = async {
                let reply = self.attempt(call, &mut renewals).await?;
                if reply.status() == StatusCode::NOT_FOUND {
                    return Ok(None);
                }
                if !reply.status().is_success() {
                    return Err(reply.refused(&self.place));
                }
                let body = reply.body(limit, &self.place).await?;
                if wanted.is_some_and(|wanted| wanted != digest(&body)) {
                    let what = format!("the {name} does not match its digest");
                    return Err(Failure::transient(what));
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
