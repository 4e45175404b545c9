//! Images in registries: the blob of the layer that is an EROFS image.

use super::http::{Address, HttpObject, Target};
use super::object::{Identity, Later, Object};
use crate::client::renewal::Pass;
use crate::client::{Client, Denial};
use crate::error::Result;
use crate::location::{self, Reference};
use crate::registry::{self, IndexPlace, Registry, Session};
use crate::retry::{Failure, RetryPolicy};
use reqwest::Url;
use std::sync::Arc;

/// Layer of a manifest.
pub(crate) struct Layer {
    pub(crate) blob: (Arc<Client>, Box<dyn Address>),
    pub(crate) identity: Identity,
    /// Root hash that the manifest states, in hexadecimal digits.
    pub(crate) root_hash: Option<String>,
    /// Chunk index at the end of the blob.
    pub(crate) index: Option<IndexPlace>,
}

/// Finds the only layer of an image that is an EROFS image, without its devices. An index is followed to the manifest of this machine.
pub(crate) async fn find(
    client: Arc<Client>,
    reference: &Reference,
    place: &str,
    retry: RetryPolicy,
) -> Result<Layer> {
    let registry = Registry::new(client, reference, place, retry)?;
    let manifest = registry::image(&registry, &reference.version).await?;
    let found = registry::only_image(&registry, &manifest.object)?;
    open(registry, found.image)
}

/// Opens a layer that is known from its manifest.
pub(crate) fn known(
    client: Arc<Client>,
    blob: &location::Blob,
    place: &str,
    retry: RetryPolicy,
) -> Result<Layer> {
    let registry = Registry::new(client, &blob.reference, place, retry)?;
    let index = blob.index.clone();
    let layer = registry::Layer {
        digest: blob.digest.clone(),
        size: blob.size,
        root_hash: blob.root_hash.clone(),
        hash_offset: None,
        index: index.map(|(start, digest)| IndexPlace { start, digest }),
    };
    open(registry, layer)
}

/// Opens the blob of a layer.
fn open(registry: Registry, layer: registry::Layer) -> Result<Layer> {
    let blob = Blob::new(&registry, &layer.digest)?;
    Ok(Layer {
        identity: Identity {
            validator: layer.digest,
            origin: blob.origin(),
            size: layer.size,
        },
        blob: (registry.client, Box::new(blob)),
        root_hash: layer.root_hash,
        index: layer.index,
    })
}

/// Blob of a repository.
struct Blob {
    url: Url,
    session: Arc<Session>,
}

impl Blob {
    fn new(registry: &Registry, digest: &str) -> Result<Self> {
        Ok(Self {
            url: registry.url(&format!("blobs/{digest}"))?,
            session: Arc::clone(&registry.session),
        })
    }
}

/// Blob of a repository as an object. Its bytes are not verified.
pub(crate) fn blob(registry: &Registry, digest: &str, size: u64) -> Result<impl Object + use<>> {
    let address: Box<dyn Address> = Box::new(Blob::new(registry, digest)?);
    let identity = Identity {
        validator: digest.to_owned(),
        origin: address.origin(),
        size,
    };
    let client = (Arc::clone(&registry.client), address);
    let place = registry.place.clone();
    Ok(HttpObject::pinned(client, identity, place, registry.retry))
}

impl Address for Blob {
    fn origin(&self) -> String {
        self.url.to_string()
    }

    fn target(&self) -> Later<'_, Result<Target, Failure>> {
        Box::pin(async {
            let (authorization, pass) = self.session.authorization().await?.unzip();
            Ok(Target {
                url: self.url.clone(),
                authorization,
                pass,
            })
        })
    }

    fn accepted(&self, used: Option<&Pass>) {
        self.session.accepted(used);
    }

    fn renew(&self, denial: &Denial, used: Option<&Pass>) -> bool {
        self.session.renew(denial, used)
    }

    fn has_public_path(&self) -> bool {
        true
    }
}
