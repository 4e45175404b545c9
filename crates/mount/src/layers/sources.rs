//! Layers that URLs name.

use super::layer::Layer;
use super::store::is_digest;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use tuff_erofs::{Error, Result};
use tuff_open::{CacheOptions, ImageRef, remote};
use tuff_remote::{Kind, Location, Options};

/// Number of URLs whose layers are looked for at once.
const AT_ONCE: usize = 8;

/// Result of the search for the layers that URLs name.
#[derive(Default)]
pub struct Found {
    /// Layers, each once.
    pub layers: Vec<Layer>,
    /// URLs whose layers could not be found.
    pub unresolved: Vec<Unresolved>,
    /// Properties of images that their user should know.
    pub warnings: Vec<String>,
}

/// URL whose layers could not be found, and the reason.
pub struct Unresolved {
    url: ImageRef,
    options: Options,
    pub(super) why: String,
}

impl fmt::Display for Unresolved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.url.fmt(f)
    }
}

impl Unresolved {
    /// Finds the layers of the URL.
    pub(super) fn find(&self) -> Result<Vec<Layer>> {
        let found = of_location(location(&self.url)?, &self.options);
        found.map_err(|Failure { error, .. }| error)
    }
}

/// Finds all layers that the URLs name, each once. Where a server cannot be reached, they are those that it named last.
///
/// # Errors
/// `Usage` for what is no URL, or has another name than that of a layer; errors of the servers, except that they cannot be
/// reached or refuse access.
pub fn find(urls: &[ImageRef], cache: &CacheOptions) -> Result<Found> {
    let mut found = Found::default();
    // Numbers of the layers.
    let mut known: HashMap<String, usize> = HashMap::new();
    let mut options = remote::options(cache, None, None)?;
    options.offline = true;
    let locations: Vec<&Location> = urls.iter().map(location).collect::<Result<_>>()?;
    for ((url, location), layers) in urls
        .iter()
        .zip(&locations)
        .zip(find_all(&locations, &options))
    {
        match layers {
            Ok(layers) => {
                for layer in layers {
                    match known.entry(layer.diff_id.clone()) {
                        Entry::Occupied(number) => found.layers[*number.get()].share(&layer),
                        Entry::Vacant(place) => {
                            place.insert(found.layers.len());
                            found.layers.push(layer);
                        }
                    }
                }
                found.warnings.extend(location.warnings());
            }
            Err(Failure {
                error,
                may_pass: true,
            }) => {
                let why = error.to_string();
                found.warnings.push(format!(
                    "{why}; its layers are not served until that has passed"
                ));
                found.unresolved.push(Unresolved {
                    url: url.clone(),
                    options: options.clone(),
                    why,
                });
            }
            Err(Failure { error, .. }) => return Err(error),
        }
    }
    Ok(found)
}

fn location(url: &ImageRef) -> Result<&Location> {
    let not_a_url = || Error::usage(format_args!("{url}: not a URL of an image"));
    url.url().ok_or_else(not_a_url)?.location().map_err(error)
}

/// Failure to find layers.
struct Failure {
    error: Error,
    /// True if another attempt may succeed: the server cannot be reached, or refuses access.
    may_pass: bool,
}

impl From<tuff_remote::Error> for Failure {
    fn from(e: tuff_remote::Error) -> Self {
        Self {
            may_pass: e.kind() == Kind::Unavailable,
            error: error(e),
        }
    }
}

/// Finds the layers at several locations, some at once: a server that cannot be reached takes seconds.
fn find_all(locations: &[&Location], options: &Options) -> Vec<Result<Vec<Layer>, Failure>> {
    let mut found = Vec::new();
    for locations in locations.chunks(AT_ONCE) {
        std::thread::scope(|scope| {
            let find = |location: &&Location| {
                let location = Location::clone(location);
                scope.spawn(move || of_location(&location, options))
            };
            let threads: Vec<_> = locations.iter().map(find).collect();
            found.extend(threads.into_iter().map(|thread| {
                let ended = thread.join();
                ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            }));
        });
    }
    found
}

fn of_location(location: &Location, options: &Options) -> Result<Vec<Layer>, Failure> {
    match location.is_registry() {
        true => Ok(of_image(location, options)?),
        false => Ok(vec![of_object(location, options)?]),
    }
}

fn of_image(location: &Location, options: &Options) -> Result<Vec<Layer>, tuff_remote::Error> {
    let found = tuff_remote::layers(location, options)?;
    let layer = |layer: tuff_remote::Layer| {
        let verity = layer.root_hash.as_ref().zip(layer.hash_offset);
        let verity = verity.map(|(root, offset)| {
            serde_json::json!({"roothash": root, "hashoffset": offset}).to_string()
        });
        let source = (layer.location, location.clone());
        Layer::new(layer.diff_id, layer.size, verity, source, options.clone())
    };
    Ok(found.into_iter().map(layer).collect())
}

fn error(e: tuff_remote::Error) -> Error {
    remote::failed(e, "cannot open")
}

/// Layer of an object, whose name states what it is.
fn of_object(location: &Location, options: &Options) -> Result<Layer, Failure> {
    let name = location.file_name().unwrap_or_default();
    let diff_id = name.strip_suffix(".erofs").unwrap_or(name);
    if !is_digest(diff_id) {
        let what = "the name of a layer is its diffID, 64 hexadecimal digits, and '.erofs'";
        return Err(Failure {
            error: Error::usage(format_args!("{location}: {what}")),
            may_pass: false,
        });
    }
    let store = tuff_remote::open(location, options)?;
    let size = tuff_store::ReadAt::size(&*store);
    Ok(Layer::new(
        diff_id.to_owned(),
        size,
        None,
        (location.clone(), location.clone()),
        options.clone(),
    ))
}
