//! Sources of images: objects that are read in ranges, and whose identity is pinned.

mod aws_profile;
pub(crate) mod bucket;
mod http;
mod object;
mod oci;
mod s3;

use crate::client::Client;
use crate::error::Result;
use crate::location::{Address, Location};
use crate::registry::IndexPlace;
use crate::retry::RetryPolicy;
use std::sync::Arc;

pub(crate) use http::content_range;
pub(crate) use object::{Identity, Later, Object};
pub(crate) use oci::blob;

/// Object with what was learned when it was opened.
pub(crate) struct Opened {
    pub(crate) object: Arc<dyn Object>,
    /// First bytes of the object, if they came with its identity.
    pub(crate) head: Vec<u8>,
    /// Root hash that the reference names, in hexadecimal digits.
    pub(crate) root_hash: Option<String>,
    /// Chunk index that the reference names.
    pub(crate) index: Option<IndexPlace>,
}

/// Opens the object at a location and pins its identity. The first request asks for `head` bytes.
pub(crate) async fn open(
    location: &Location,
    head: u64,
    has_root: bool,
    retry: RetryPolicy,
) -> Result<Opened> {
    let client = Arc::new(Client::default());
    let place = location.to_string();
    let (address, root_hash): (Box<dyn http::Address>, _) = match &location.address {
        Address::Http(url) => (Box::new(http::Plain::new(url)), None),
        Address::S3 { bucket, key } => (Box::new(s3::Object::new(bucket, key, &place)?), None),
        Address::Oci(reference) => {
            let layer = oci::find(client, reference, &place, retry).await?;
            return Ok(of_layer(layer, place, retry));
        }
        Address::Blob(blob) => {
            let layer = oci::known(client, blob, &place, retry)?;
            return Ok(of_layer(layer, place, retry));
        }
        Address::File(_) => {
            let what = "a local file needs no client";
            return Err(crate::Error::new(crate::Kind::Usage, place, what));
        }
    };
    let opened = http::HttpObject::open(client, address, place, head, has_root, retry).await?;
    Ok(Opened {
        object: Arc::new(opened.0),
        head: opened.1,
        root_hash,
        index: None,
    })
}

/// Origin of the object at an HTTP URL.
#[cfg(test)]
pub(crate) fn of_url(url: &str) -> String {
    let url = reqwest::Url::parse(url).unwrap();
    http::Address::origin(&http::Plain::new(&url))
}

fn of_layer(layer: oci::Layer, place: String, retry: RetryPolicy) -> Opened {
    let object = http::HttpObject::pinned(layer.blob, layer.identity, place, retry);
    Opened {
        object: Arc::new(object),
        head: Vec::new(),
        root_hash: layer.root_hash,
        index: layer.index,
    }
}
