//! Manifests that locations name, and objects that URLs named last.
//!
//! The identity that a tag or URL names is kept in the cache under the server, the repository and the name of the login. A server that cannot be
//! reached leaves the choice between an error and what it named last; the latter is a rollback, so the caller has to permit it.

use crate::address::{Reference, sha256_hex};
use crate::cache::{Directory, Documents};
use crate::client::{Client, Reached};
use crate::error::{Error, Kind, Result};
use crate::location::Location;
use crate::options::Options;
use crate::registry::{self, Manifest, Registry};
use reqwest::Url;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Identity that a tag or URL named, and when the server said so.
struct LastSeen {
    /// Digest or validator.
    name: String,
    /// Size of an object. Unit: bytes.
    size: u64,
    time: SystemTime,
}

impl LastSeen {
    fn encode(name: &str, size: u64) -> Vec<u8> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let seconds = since.unwrap_or_default().as_secs();
        let object = json!({"name": name, "size": size, "seen": seconds});
        object.to_string().into_bytes()
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let object: Value = serde_json::from_slice(bytes).ok()?;
        let since = Duration::from_secs(object["seen"].as_u64()?);
        Some(Self {
            name: object["name"].as_str()?.to_owned(),
            size: object["size"].as_u64()?,
            // A date of HTTP has four digits for its year.
            time: UNIX_EPOCH.checked_add(since.min(Duration::from_secs(253_402_300_799)))?,
        })
    }

    /// Warning that a server cannot be reached, so that what it named last is opened.
    fn warning(&self, location: &Location, why: &str) -> String {
        let name = self.name.strip_prefix("etag ").unwrap_or(&self.name);
        let time = httpdate::fmt_http_date(self.time);
        format!(
            "{location}: the server cannot be reached ({why}); opened {} instead, last seen {time}",
            name.escape_debug()
        )
    }
}

/// Documents in the cache of a scope. `None` without a cache.
pub(crate) fn documents(options: &Options, scope: &[&str]) -> Option<Documents> {
    let directory = Directory::open(&options.cache, options.cache_max).ok()?;
    Some(Documents::new(Arc::new(directory), scope))
}

/// Repository of a reference at a location, whose documents are kept in the cache.
pub(crate) async fn registry(
    location: &Location,
    reference: &Reference,
    options: &Options,
) -> Result<Registry> {
    let place = location.to_string();
    let connections = location.connections();
    let registry = connections.registry(reference, &place, options.retry)?;
    let login = registry.session.login_name().await;
    let base = registry.url("")?;
    let of_login = |login: String| documents(options, &["registry", base.as_str(), &login]);
    Ok(registry.with_documents(login.and_then(of_login)))
}

/// Manifest of this machine that a location names. A digest is requested once, a tag each time: it may have moved.
pub(crate) async fn manifest(
    location: &Location,
    reference: &Reference,
    registry: &Registry,
    options: &Options,
) -> Result<Arc<Manifest>> {
    let version = &reference.version;
    let connections = location.connections();
    if sha256_hex(version).is_some() {
        if let Some(known) = connections.manifest(version) {
            return Ok(known);
        }
        if registry.kept_manifest(version).is_none() {
            registry.open_early();
        }
        let manifest = Arc::new(registry::image(registry, version).await?);
        connections.keep_manifest(version, &manifest);
        return Ok(manifest);
    }
    let name = format!("tags/{version}");
    let last = registry
        .kept(&name)
        .and_then(|last| LastSeen::decode(&last));
    let last = last.filter(|_| options.offline);
    let last = last.and_then(|last| {
        let manifest = registry::kept_image(registry, &last.name)?;
        Some((last, manifest))
    });
    let request = registry::image(registry, version);
    let manifest = match last {
        None => {
            registry.open_early();
            request.await?
        }
        Some((last, kept)) => match registry.client.reach(request).await {
            Reached::Answer(manifest) => manifest?,
            Reached::Outage(why) => {
                connections.go_offline(last.warning(location, &why));
                let kept = Arc::new(kept);
                connections.keep_manifest(version, &kept);
                return Ok(kept);
            }
        },
    };
    let manifest = Arc::new(manifest);
    connections.keep_manifest(version, &manifest);
    if let Some(documents) = registry.documents().filter(|_| options.offline) {
        let last = LastSeen::encode(&manifest.digest, manifest.bytes.len() as u64);
        connections.keep_after_opening(Arc::clone(documents), name, last);
    }
    Ok(manifest)
}

/// Manifest of this machine that was found at a location last.
pub(crate) async fn found_manifest(
    location: &Location,
    reference: &Reference,
    registry: &Registry,
    options: &Options,
) -> Result<Arc<Manifest>> {
    match location.connections().manifest(&reference.version) {
        Some(known) => Ok(known),
        None => manifest(location, reference, registry, options).await,
    }
}

/// Validator and size of the object that a URL named last.
pub(crate) struct LastObject {
    pub(crate) validator: String,
    pub(crate) size: u64,
}

/// Opens an object of a web server, or returns what its URL named last, if the server cannot be reached and the options permit
/// that. `origin`: all that selects the object, with the name of the user.
pub(crate) async fn object<T>(
    location: &Location,
    (url, origin): (&Url, &str),
    options: &Options,
    client: &Client,
    request: impl Future<Output = Result<T>>,
) -> Result<T, Unreached> {
    let documents = documents(options, &["url", origin]).filter(|_| options.offline);
    let last = documents.and_then(|documents| documents.get("object"));
    let last = last.and_then(|last| LastSeen::decode(&last));
    // Without a validator, only a root hash tells versions apart.
    let last = last.filter(|last| !last.name.is_empty() || options.root_hash.is_some());
    let Some(last) = last else {
        client.open_early(url);
        return request.await.map_err(Unreached::Failed);
    };
    match client.reach(request).await {
        Reached::Answer(opened) => opened.map_err(Unreached::Failed),
        Reached::Outage(why) => {
            let connections = location.connections();
            connections.go_offline(last.warning(location, &why));
            Err(Unreached::Last(LastObject {
                validator: last.name,
                size: last.size,
            }))
        }
    }
}

/// Reason why there is no object.
pub(crate) enum Unreached {
    Failed(Error),
    /// The server cannot be reached. Object that the URL named last.
    Last(LastObject),
}

/// Keeps what the URL of an object names, once the image is open, if it may be opened without the server later.
pub(crate) fn keep_object(
    location: &Location,
    origin: &str,
    options: &Options,
    (validator, size): (&str, u64),
) {
    if !options.offline {
        return;
    }
    if let Some(documents) = documents(options, &["url", origin]) {
        let last = LastSeen::encode(validator, size);
        let connections = location.connections();
        connections.keep_after_opening(Arc::new(documents), "object".to_owned(), last);
    }
}

/// Error for signatures that cannot be asked for.
pub(crate) fn unsigned(location: &Location) -> Error {
    let what = "the server cannot be reached, and the cache has no signature by the certificate";
    Error::new(Kind::Unavailable, location, what)
}
