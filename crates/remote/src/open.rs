//! Opening of remote images: identity, cache and hash tree.

use crate::cache::Directory;
use crate::error::{Error, Kind, Result};
use crate::fetch::Fetcher;
use crate::first_reads::{FirstReads, HEAD};
use crate::location::Location;
use crate::options::Options;
use crate::registry::{hex, unhex};
use crate::runtime::runtime;
use crate::source::{self, Identity, Opened};
use crate::store::{Cached, RemoteStore};
use sha2::{Digest, Sha256};
use std::io;
use std::sync::Arc;
use tuff_verity::Root;

/// Opens the image at a location as a store. Its identity is the same for the life of the store.
///
/// With a root hash, the store has only bytes that match it.
///
/// # Errors
/// Kinds of [`Error`], each with one sentence that names the location.
pub fn open(location: &Location, options: &Options) -> Result<Arc<RemoteStore>> {
    let place = location.to_string();
    if let Some(path) = location.local_path() {
        return Ok(Arc::new(RemoteStore::local(path, place)?));
    }
    let runtime = runtime()?;
    let has_root = options.root_hash.is_some();
    let opened = runtime.block_on(source::open(location, HEAD, has_root, options.retry))?;
    let store = Opening { options, place }.store(opened)?;
    Ok(Arc::new(store))
}

/// Opening of one image.
struct Opening<'a> {
    options: &'a Options,
    place: String,
}

impl Opening<'_> {
    fn error(&self, kind: Kind, what: impl std::fmt::Display) -> Error {
        Error::new(kind, &self.place, what)
    }

    fn cache_error(&self, e: io::Error) -> Error {
        let place = format!("cache {}", self.options.cache.display());
        Error::new(Kind::Unavailable, place, e)
    }

    fn store(&self, opened: Opened) -> Result<RemoteStore> {
        let root = match (self.options.root_hash, &opened.root_hash) {
            (Some(root), _) => Some(root),
            (None, Some(hex)) => {
                let what = "the root hash in the manifest is not 64 hexadecimal digits";
                Some(unhex(hex).ok_or_else(|| self.error(Kind::Unsupported, what))?)
            }
            (None, None) => None,
        };
        let object = opened.object;
        let size = object.identity().size;
        let directory = Directory::open(&self.options.cache, self.options.cache_max);
        let directory = Arc::new(directory.map_err(|e| self.cache_error(e))?);
        let key = key(object.identity(), root);
        let cache = directory
            .image(&key, size)
            .map_err(|e| self.cache_error(e))?;
        // The chunk index after an image is no part of it.
        let end = opened.index.as_ref().map_or(size, |index| index.start);
        let first = FirstReads {
            place: &self.place,
            object: &object,
            head: opened.head,
            index: opened.index,
        };
        let first = first.run(root, &directory, &key, &cache)?;
        let cache = Arc::new(cache);
        let fetcher = Fetcher::new(
            object,
            (Arc::clone(&directory), key.clone(), Arc::clone(&cache)),
            first.clone(),
            self.place.clone(),
            runtime()?.handle().clone(),
            self.options,
        );
        let cached = Cached {
            directory,
            key,
            cache,
            verifier: first,
            root,
            fetcher: Arc::new(fetcher),
        };
        Ok(RemoteStore::remote(end, self.place.clone(), cached))
    }
}

/// Name of an image in the cache.
fn key(identity: &Identity, root: Option<Root>) -> String {
    let mut hash = Sha256::new();
    for text in [&identity.name, &identity.validator] {
        hash.update((text.len() as u64).to_le_bytes());
        hash.update(text);
    }
    hash.update(identity.size.to_le_bytes());
    // Bytes that were not verified are kept apart.
    hash.update(root.as_ref().map_or(&[][..], |root| &root[..]));
    hex(&hash.finalize())
}
