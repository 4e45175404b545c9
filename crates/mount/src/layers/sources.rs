//! Layers that URLs name.

use super::layer::Layer;
use super::store::is_digest;
use std::collections::HashSet;
use tuff_erofs::{Error, Result};
use tuff_open::{CacheOptions, ImageRef, remote};
use tuff_remote::{Location, Options};

/// Finds all layers that the URLs name, each once.
///
/// # Errors
/// `Usage` for what is no URL, or has another name than that of a layer; errors of the servers.
pub fn find(urls: &[ImageRef], cache: &CacheOptions) -> Result<Vec<Layer>> {
    let mut layers = Vec::new();
    let mut known = HashSet::new();
    let options = remote::options(cache, None, None)?;
    for url in urls {
        let not_a_url = || Error::usage(format_args!("{url}: not a URL of an image"));
        let location = url.url().ok_or_else(not_a_url)?.location().map_err(error)?;
        let found = match location.is_registry() {
            true => of_image(location, &options)?,
            false => vec![of_object(location, &options)?],
        };
        layers.extend(
            found
                .into_iter()
                .filter(|l| known.insert(l.diff_id.clone())),
        );
    }
    Ok(layers)
}

fn of_image(location: &Location, options: &Options) -> Result<Vec<Layer>> {
    let found = tuff_remote::layers(location, options.retry).map_err(error)?;
    let layer = |layer: tuff_remote::Layer| {
        let verity = layer.root_hash.as_ref().zip(layer.hash_offset);
        let verity = verity.map(|(root, offset)| {
            serde_json::json!({"roothash": root, "hashoffset": offset}).to_string()
        });
        let source = (layer.location, options.clone());
        Layer::new(layer.diff_id, layer.size, verity, source)
    };
    Ok(found.into_iter().map(layer).collect())
}

fn error(e: tuff_remote::Error) -> Error {
    remote::failed(e, "cannot open")
}

/// Layer of an object, whose name states what it is.
fn of_object(location: &Location, options: &Options) -> Result<Layer> {
    let name = location.file_name().unwrap_or_default();
    let diff_id = name.strip_suffix(".erofs").unwrap_or(name);
    if !is_digest(diff_id) {
        return Err(Error::usage(format_args!(
            "{location}: the name of a layer is its diffID, 64 hexadecimal digits, and '.erofs'"
        )));
    }
    let store = tuff_remote::open(location, options).map_err(error)?;
    let size = tuff_store::ReadAt::size(&*store);
    Ok(Layer::new(
        diff_id.to_owned(),
        size,
        None,
        (location.clone(), options.clone()),
    ))
}
