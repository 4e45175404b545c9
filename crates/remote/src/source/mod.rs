//! Sources of images: objects that are read in ranges, and whose identity is pinned.

mod aws_profile;
pub(crate) mod bucket;
mod http;
mod object;
mod oci;
mod s3;
mod whole_answers;

use crate::address::{Address, Stated};
use crate::error::Result;
use crate::location::Location;
use crate::options::Options;
use crate::registry::IndexPlace;
use crate::resolve::{self, Unreached};
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
    /// Statements of the reference about the image.
    pub(crate) stated: Stated,
    /// Chunk index that the reference names.
    pub(crate) index: Option<IndexPlace>,
}

/// Opens the object at a location and pins its identity. The first request asks for `head` bytes.
pub(crate) async fn open(
    location: &Location,
    head: u64,
    has_root: bool,
    options: &Options,
) -> Result<Opened> {
    let retry = options.retry;
    let client = location.connections().client();
    let place = location.to_string();
    match &location.address {
        Address::Http(url) => {
            let make = || Box::new(http::Plain::new(url));
            let origin = http::Address::origin(&*make());
            let request = http::HttpObject::open(
                Arc::clone(&client),
                make(),
                place.clone(),
                head,
                has_root,
                retry,
            );
            let opened = resolve::object(location, (url, &origin), options, &client, request).await;
            let (object, head) = match opened {
                Ok((object, head)) => {
                    let identity = object.identity();
                    let seen = (identity.validator.as_str(), identity.size);
                    resolve::keep_object(location, &origin, options, seen);
                    (object, head)
                }
                Err(Unreached::Failed(e)) => return Err(e),
                Err(Unreached::Last(last)) => {
                    let identity = Identity {
                        validator: last.validator,
                        origin,
                        size: last.size,
                    };
                    let object = (client, make() as Box<dyn http::Address>);
                    let object = http::HttpObject::pinned(object, identity, place, retry);
                    (object, Vec::new())
                }
            };
            Ok(of_object(location, object, head))
        }
        Address::S3 { bucket, key } => {
            let address = Box::new(s3::Object::new(bucket, key, &place)?);
            let opened = http::HttpObject::open(client, address, place, head, has_root, retry);
            let (object, head) = opened.await?;
            Ok(of_object(location, object, head))
        }
        Address::Oci(reference) => {
            let registry = resolve::registry(location, reference, options).await?;
            let manifest = resolve::manifest(location, reference, &registry, options).await?;
            let layer = oci::only_layer(&registry, &manifest)?;
            Ok(of_layer(layer, place, retry))
        }
        Address::Blob(blob) => {
            let connections = location.connections();
            let registry = connections.registry(&blob.reference, &place, retry)?;
            let layer = oci::known_layer(&registry, blob)?;
            Ok(of_layer(layer, place, retry))
        }
        Address::File(_) => {
            let what = "a local file needs no client";
            Err(crate::Error::new(crate::Kind::Usage, place, what))
        }
    }
}

/// Object that is no blob of a registry. Its identity is that of the documents beside it.
fn of_object(location: &Location, object: http::HttpObject, head: Vec<u8>) -> Opened {
    let identity = object.identity();
    if !identity.validator.is_empty() {
        let size = identity.size.to_string();
        let identity = [identity.origin.clone(), identity.validator.clone(), size];
        location
            .connections()
            .keep_object(&location.address, identity);
    }
    Opened {
        object: Arc::new(object),
        head,
        root_hash: None,
        stated: Stated::default(),
        index: None,
    }
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
        stated: layer.stated,
        index: layer.index,
    }
}
