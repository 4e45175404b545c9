//! Images in registries: the blob of the layer that is an EROFS image.

use super::http::{Address, HttpObject, Target};
use super::object::{Identity, Later, Object};
use crate::address::{self, Stated};
use crate::client::renewal::Pass;
use crate::client::{Client, Denial, Reply};
use crate::error::Result;
use crate::registry::{self, IndexPlace, Manifest, Registry, Session};
use crate::retry::Failure;
use reqwest::Url;
use std::sync::Arc;

/// Layer of a manifest.
pub(crate) struct Layer {
    pub(crate) blob: (Arc<Client>, Box<dyn Address>),
    pub(crate) identity: Identity,
    /// Root hash that the manifest states, in hexadecimal digits.
    pub(crate) root_hash: Option<String>,
    /// Statements of the manifest about the image.
    pub(crate) stated: Stated,
    /// Chunk index at the end of the blob.
    pub(crate) index: Option<IndexPlace>,
}

/// Finds the only layer of a manifest that is an EROFS image, without its devices.
pub(crate) fn only_layer(registry: &Registry, manifest: &Manifest) -> Result<Layer> {
    let found = registry::only_image(registry, &manifest.object)?;
    open(registry, found.image)
}

/// Opens a layer that is known from its manifest.
pub(crate) fn known_layer(registry: &Registry, blob: &address::Blob) -> Result<Layer> {
    let index = blob.index.clone();
    let layer = registry::Layer {
        digest: blob.digest.clone(),
        size: blob.size,
        root_hash: blob.root_hash.clone(),
        stated: blob.stated.clone(),
        index: index.map(|(start, digest)| IndexPlace { start, digest }),
    };
    open(registry, layer)
}

/// Opens the blob of a layer.
fn open(registry: &Registry, layer: registry::Layer) -> Result<Layer> {
    let blob = Blob::new(registry, &layer.digest)?;
    Ok(Layer {
        identity: Identity {
            validator: layer.digest,
            origin: blob.origin(),
            size: layer.size,
        },
        blob: (Arc::clone(&registry.client), Box::new(blob)),
        root_hash: layer.root_hash,
        stated: layer.stated,
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
            let (authorization, pass) = self.session.authorization().await?;
            Ok(Target {
                url: self.url.clone(),
                authorization,
                pass,
            })
        })
    }

    fn note_answer(&self, reply: &Reply, used: Option<&Pass>) {
        self.session.note_answer(reply, used);
    }

    fn renew(&self, denial: &Denial, used: Option<&Pass>) -> bool {
        self.session.renew(denial, used)
    }

    fn has_public_path(&self) -> bool {
        true
    }
}
