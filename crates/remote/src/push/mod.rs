//! Upload of images: to a repository of a registry as the EROFS image specification says, or to a bucket.
//!
//! ```text
//!  image + hash tree ──► blob ──────► registry: layers, config, manifest, index, referrers
//!                        digest,  └─► bucket: one object, side files
//!                        chunk index
//! ```
//!
//! The image is read twice, in steps: for its digests, and while it is sent.

mod blob;
pub(crate) mod bucket;
mod manifest;
mod options;
mod referrer;
mod repository;
mod signatures;
mod upload_record;
mod uploader;
mod watch;

use crate::address::Address;
use crate::client::Client;
use crate::error::{Error, Kind, Result};
use crate::location::Location;
use crate::registry::Registry;
use crate::runtime::runtime;
use blob::Blob;
use std::sync::Arc;
use watch::Watch;

pub use options::{LayerImage, LayerMedia, LayerTree, PushOptions, Pushed, PushedLayer};
pub use watch::Step;

/// Uploads layers, from the lowest to the highest, to a repository, or one image to a bucket.
///
/// `report` learns of each step, and stops the upload if it returns false.
///
/// # Errors
/// Kinds of [`Error`], each with one sentence that names the location.
pub fn push(
    location: &Location,
    layers: &[LayerImage],
    options: &PushOptions,
    report: &dyn Fn(&Step) -> bool,
) -> Result<Pushed> {
    let place = location.to_string();
    let usage = |what: &str| Error::new(Kind::Usage, &place, what);
    let runtime = runtime()?;
    let watch = Watch::new(&place, report);
    match &location.address {
        Address::Oci(reference) => {
            if reference.version.contains(':') {
                return Err(usage("an upload goes to a tag, not to a digest"));
            }
            let has_devices = layers.iter().any(|layer| !layer.devices.is_empty());
            if has_devices && options.media == LayerMedia::Containerd {
                return Err(usage(
                    "containerd 2.4 mounts no image with data on other devices: upload it as application/vnd.erofs, or build one image without bases",
                ));
            }
            let client = Arc::new(Client::for_uploads());
            let registry = Registry::new(client, reference, &place, options.retry)?;
            let blobs = blobs(layers, &watch)?;
            let push = repository::push(&registry, &reference.version, &blobs, options, &watch);
            let pushed = runtime.block_on(push);
            // The tag may name another manifest, also if the answer to its upload was lost.
            location.connections().forget_manifest(&reference.version);
            pushed
        }
        Address::S3 { bucket, key } => {
            let [layer] = layers else {
                return Err(usage(
                    "an object in a bucket is one image: merge the sources, or name a registry",
                ));
            };
            let blobs = Blob::measure_all(layer, false, &watch)?;
            runtime.block_on(bucket::push((bucket, key), &blobs, options, &watch))
        }
        Address::Http(_) | Address::File(_) | Address::Blob(_) => Err(usage(
            "expected oci://REGISTRY/NAME[:TAG] or s3://BUCKET/KEY",
        )),
    }
}

fn blobs(layers: &[LayerImage], watch: &Watch<'_>) -> Result<Vec<Blob>> {
    let mut blobs = Vec::new();
    for layer in layers {
        blobs.extend(Blob::measure_all(layer, true, watch)?);
    }
    Ok(blobs)
}
