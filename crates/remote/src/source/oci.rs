//! Images in registries: the layer of a manifest that is an EROFS image.

use super::http::{Address, RENEWALS_MAX, Target};
use super::object::{Identity, Later};
use super::registry_auth::Session;
use crate::client::{Client, Reply, Request};
use crate::error::{Error, Kind, Result};
use crate::location::{Reference, sha256_hex};
use crate::retry::{Failure, RetryPolicy};
use reqwest::Url;
use reqwest::header::ACCEPT;
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::fmt::Write as _;
use std::sync::Arc;

/// Longest manifest that registries accept. Unit: bytes.
const MANIFEST_MAX: usize = 4 << 20;

/// Media types of layers that are EROFS images: exact ones, or one with a suffix such as `.layer.v1`.
const LAYER_TYPE: &str = "application/vnd.erofs";

/// Media type of lists of digests of chunks, which are no images.
const CHUNK_INDEX_TYPE: &str = "application/vnd.erofs.chunk-index";

/// Annotation of a layer with the root hash of its hash tree.
const ROOT_HASH: &str = "org.erofs.dmverity.root_digest";

const MANIFEST_TYPES: &str = "application/vnd.oci.image.manifest.v1+json, application/vnd.oci.image.index.v1+json, application/vnd.docker.distribution.manifest.v2+json, application/vnd.docker.distribution.manifest.list.v2+json";

/// Layer of a manifest.
pub(crate) struct Layer {
    pub(crate) blob: (Arc<Client>, Box<dyn Address>),
    pub(crate) identity: Identity,
    /// Root hash that the manifest states, in hexadecimal digits.
    pub(crate) root_hash: Option<String>,
}

/// Finds the layer of an image that is an EROFS image. An index is followed to the manifest of this machine.
pub(crate) async fn find(
    client: Arc<Client>,
    reference: &Reference,
    place: &str,
    retry: RetryPolicy,
) -> Result<Layer> {
    let session = Arc::new(Session::new(Arc::clone(&client), reference, place));
    let registry = Registry {
        client,
        session,
        base: base(reference, place)?,
        place,
        retry,
    };
    let mut manifest = registry.manifest(&reference.version).await?;
    if let Some(children) = manifest["manifests"].as_array() {
        let digest = child(children).ok_or_else(|| {
            let held = described(children, &|child| platform(child));
            registry.unusable(format_args!(
                "the index holds no manifest for {}: {held}",
                this_platform()
            ))
        })?;
        manifest = registry.manifest(&digest).await?;
    }
    registry.layer(&manifest)
}

struct Registry<'a> {
    client: Arc<Client>,
    session: Arc<Session>,
    /// URL of the repository, with a slash at its end.
    base: Url,
    place: &'a str,
    retry: RetryPolicy,
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

impl Registry<'_> {
    fn unusable(&self, what: impl std::fmt::Display) -> Error {
        Error::new(Kind::Unsupported, self.place, what)
    }

    /// Reads a manifest by tag or digest. A digest is verified.
    async fn manifest(&self, version: &str) -> Result<Value> {
        let url = self.base.join(&format!("manifests/{version}"));
        let url = url.map_err(|e| Error::new(Kind::Usage, self.place, e))?;
        let mut renewals = 0;
        let mut retries = self.retry.start(self.place);
        let body = loop {
            let attempt = self.manifest_bytes(&url, version, &mut renewals);
            if let Some(body) = retries.attempt(attempt).await? {
                break body;
            }
        };
        serde_json::from_slice(&body).map_err(|_| self.unusable("the manifest is not JSON"))
    }

    async fn manifest_bytes(
        &self,
        url: &Url,
        version: &str,
        renewals: &mut u32,
    ) -> Result<Vec<u8>, Failure> {
        loop {
            let authorization = self.session.authorization().await?;
            let request = Request {
                url: url.clone(),
                headers: &[(ACCEPT, MANIFEST_TYPES.to_owned())],
                authorization: authorization.clone(),
                form: None,
            };
            let reply = self.client.send(request, self.place).await?;
            let is_denied = reply.status().as_u16() == 401;
            let used = authorization.as_deref();
            if is_denied && *renewals < RENEWALS_MAX && self.session.renew(&reply, used) {
                *renewals += 1;
                continue;
            }
            if !reply.status().is_success() {
                return Err(reply.refused(self.place));
            }
            let body = reply.body(MANIFEST_MAX, self.place).await?;
            if sha256_hex(version).is_some_and(|hex| hex != hex_of(&Sha256::digest(&body))) {
                return Err(Failure::transient("the manifest does not match its digest"));
            }
            return Ok(body);
        }
    }

    /// Picks the layer that is an EROFS image.
    fn layer(&self, manifest: &Value) -> Result<Layer> {
        let layers = manifest["layers"].as_array().map_or(&[][..], Vec::as_slice);
        let media = |layer: &Value| {
            layer["mediaType"]
                .as_str()
                .unwrap_or("no media type")
                .to_owned()
        };
        let images: Vec<&Value> = layers
            .iter()
            .filter(|layer| is_image(&media(layer)))
            .collect();
        let [layer] = images[..] else {
            let wanted = match images.len() {
                0 => "no EROFS image",
                _ => "several EROFS images, and only one can be opened",
            };
            let held = described(layers, &media);
            return Err(self.unusable(format_args!("the manifest holds {wanted}: {held}")));
        };
        if media(layer).ends_with("+zstd") {
            return Err(self
                .unusable("the layer is compressed as a whole (+zstd), which ranges cannot read"));
        }
        let digest = layer["digest"]
            .as_str()
            .filter(|digest| sha256_hex(digest).is_some());
        let (Some(digest), Some(size)) = (digest, layer["size"].as_u64()) else {
            return Err(self.unusable("the layer has no SHA-256 digest or no size"));
        };
        let url = self.base.join(&format!("blobs/{digest}"));
        let blob = Blob {
            url: url.map_err(|e| Error::new(Kind::Usage, self.place, e))?,
            session: Arc::clone(&self.session),
        };
        let root = layer["annotations"][ROOT_HASH].as_str();
        Ok(Layer {
            blob: (Arc::clone(&self.client), Box::new(blob)),
            identity: Identity {
                validator: digest.to_owned(),
                name: String::new(),
                size,
            },
            root_hash: root.map(|root| root.strip_prefix("sha256:").unwrap_or(root).to_owned()),
        })
    }
}

fn is_image(media: &str) -> bool {
    let suffix = media.strip_prefix(LAYER_TYPE);
    suffix.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '+']))
        && !media.starts_with(CHUNK_INDEX_TYPE)
}

/// Digest of the manifest for this machine. One with `os.features` of EROFS is preferred.
fn child(children: &[Value]) -> Option<String> {
    let here = this_platform();
    let fits = |child: &&Value| platform(child) == here;
    let has_erofs = |child: &&Value| {
        let features = child["platform"]["os.features"].as_array();
        features.is_some_and(|list| list.iter().any(|feature| feature == "erofs"))
    };
    let found = children.iter().filter(fits).find(has_erofs);
    let found = found
        .or_else(|| children.iter().find(fits))
        .or(match children {
            [only] => Some(only),
            _ => None,
        });
    let digest = found?["digest"].as_str()?;
    sha256_hex(digest).map(|_| digest.to_owned())
}

fn platform(child: &Value) -> String {
    let part = |name: &str| {
        child["platform"][name]
            .as_str()
            .unwrap_or("unknown")
            .to_owned()
    };
    format!("{}/{}", part("os"), part("architecture"))
}

/// Platform of this machine, by the names of Go.
fn this_platform() -> String {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" => "386",
        other => other,
    };
    format!("linux/{architecture}")
}

/// Names of what a list holds, each with its number: `application/x (2), application/y`.
fn described(list: &[Value], name: &dyn Fn(&Value) -> String) -> String {
    /// Number of names in a message.
    const SHOWN: usize = 5;
    let mut names: Vec<(String, usize)> = Vec::new();
    for item in list {
        let name: String = name(item).escape_debug().take(100).collect();
        match names.iter_mut().find(|(known, _)| *known == name) {
            Some((_, count)) => *count += 1,
            None => names.push((name, 1)),
        }
    }
    let mut out = String::new();
    for (name, count) in names.iter().take(SHOWN) {
        let comma = if out.is_empty() { "" } else { ", " };
        let _ = match count {
            1 => write!(out, "{comma}{name}"),
            _ => write!(out, "{comma}{name} ({count})"),
        };
    }
    match names.len() {
        0 => "nothing".to_owned(),
        n if n > SHOWN => format!("{out} and {} more", n - SHOWN),
        _ => out,
    }
}

fn hex_of(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Blob of a repository.
struct Blob {
    url: Url,
    session: Arc<Session>,
}

impl Address for Blob {
    fn target(&self) -> Later<'_, Result<Target, Failure>> {
        Box::pin(async {
            Ok(Target {
                url: self.url.clone(),
                authorization: self.session.authorization().await?,
            })
        })
    }

    fn renew(&self, reply: &Reply, used: Option<&str>) -> bool {
        self.session.renew(reply, used)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn media_types_of_images_are_told_from_others() {
        let base = "application/vnd.erofs";
        for suffix in ["", "+zstd", ".layer.v1"] {
            assert!(is_image(&format!("{base}{suffix}")), "{suffix}");
        }
        for other in [
            "application/vnd.erofs.chunk-index.v1",
            "application/vnd.erofsx",
            "application/x",
        ] {
            assert!(!is_image(other), "{other}");
        }
    }

    #[test]
    fn the_manifest_of_this_machine_is_chosen() {
        let digest = |c: char| format!("sha256:{}", c.to_string().repeat(64));
        let here = this_platform();
        let arch = here.strip_prefix("linux/").unwrap();
        let entry = |c, arch: &str, features: &[&str]| json!({"digest": digest(c), "platform": {"os": "linux", "architecture": arch, "os.features": features}});
        let (tar, erofs) = (entry('a', arch, &[]), entry('b', arch, &["erofs"]));
        let other = entry('c', "other", &["erofs"]);
        let of = |list: &[&Value]| child(&list.iter().map(|v| (*v).clone()).collect::<Vec<_>>());
        assert_eq!(of(&[&other, &tar, &erofs]), Some(digest('b')));
        assert_eq!(of(&[&other, &tar]), Some(digest('a')));
        assert_eq!(of(&[&other]), Some(digest('c')));
        assert_eq!(of(&[&other, &other]), None);
    }

    #[test]
    fn a_manifest_without_an_image_is_described() {
        let list = [json!({"m": "a\n"}), json!({"m": "b"}), json!({"m": "b"})];
        let name = |item: &Value| item["m"].as_str().unwrap().to_owned();
        assert_eq!(described(&list, &name), "a\\n, b (2)");
        assert_eq!(described(&[], &name), "nothing");
    }
}
