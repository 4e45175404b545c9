//! Repository of a registry: requests with tokens and repetitions, manifests.

use super::auth::Session;
use super::digest::digest;
use super::media;
use crate::address::{Reference, sha256_hex};
use crate::cache::Documents;
use crate::client::json;
use crate::client::{Client, Content, Denial, RENEWALS_MAX, Redirects, Reply, Request};
use crate::error::{Error, Kind, Result};
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
    /// Manifests and blobs that were read before.
    documents: Option<Arc<Documents>>,
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
        let session = Arc::new(Session::open(client, reference, place)?);
        Ok(Self::of_session(session, place, retry))
    }

    /// Repository of a session. Errors name `place`.
    pub(crate) fn of_session(session: Arc<Session>, place: &str, retry: RetryPolicy) -> Self {
        Self {
            client: Arc::clone(session.client()),
            base: session.base().clone(),
            session,
            place: place.to_owned(),
            retry,
            documents: None,
        }
    }

    /// The same repository, whose manifests and small blobs are kept in the cache and read from there.
    pub(crate) fn with_documents(self, documents: Option<Documents>) -> Self {
        Self {
            documents: documents.map(Arc::new),
            ..self
        }
    }

    /// Documents of the cache.
    pub(crate) fn documents(&self) -> Option<&Arc<Documents>> {
        self.documents.as_ref()
    }

    /// Document of the cache.
    pub(crate) fn kept(&self, name: &str) -> Option<Vec<u8>> {
        self.documents.as_ref()?.get(name)
    }

    /// Keeps a document in the cache.
    pub(crate) fn keep(&self, name: &str, bytes: &[u8]) {
        if let Some(documents) = &self.documents {
            documents.put(name, bytes);
        }
    }

    /// Error about this repository.
    pub(crate) fn error(&self, kind: Kind, what: impl std::fmt::Display) -> Error {
        Error::new(kind, &self.place, what)
    }

    /// Opens connections to the registry early.
    pub(crate) fn open_early(&self) {
        self.client.open_early(&self.base);
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
            let (authorization, pass) = match is_registry {
                true => self.session.authorization().await?,
                false => (None, None),
            };
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
                object: None,
            };
            let reply = self.client.send(request, &self.place).await?;
            self.session.note_answer(&reply, pass.as_ref());
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
        if sha256_hex(version).is_none() {
            let found = self.document(&format!("manifests/{version}"), None).await?;
            if let Some(manifest) = &found {
                self.keep(&manifest_name(&manifest.digest), &manifest.bytes);
            }
            return Ok(found);
        }
        if let Some(kept) = self.kept_manifest(version) {
            return Ok(Some(kept));
        }
        let found = self
            .document(&manifest_name(version), Some(version))
            .await?;
        if let Some(manifest) = &found {
            self.keep(&manifest_name(version), &manifest.bytes);
        }
        Ok(found)
    }

    /// Manifest of a digest in the cache.
    pub(crate) fn kept_manifest(&self, version: &str) -> Option<Manifest> {
        let bytes = self.kept(&manifest_name(version))?;
        let object = json::parse(&bytes, &self.place, "manifest").ok()?;
        let digest = digest(&bytes);
        (digest == version).then_some(Manifest {
            digest,
            object,
            bytes,
        })
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
        let name = format!("blobs/{digest}");
        let kept = self.kept(&name);
        if let Some(kept) = kept.filter(|kept| kept.len() <= limit && self::digest(kept) == digest)
        {
            return Ok(kept);
        }
        let call = Call::plain(Method::GET, self.url(&name)?);
        let bytes = self.bytes(&call, limit, Some(digest), "blob").await?;
        if let Some(bytes) = &bytes {
            self.keep(&name, bytes);
        }
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

/// Name of a manifest below its repository, and in the cache.
fn manifest_name(version: &str) -> String {
    format!("manifests/{version}")
}
