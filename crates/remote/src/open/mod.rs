//! Opening of remote images: identity, cache and hash tree.

pub(crate) mod device_list;
pub(crate) mod first_reads;
pub(crate) mod images;
pub(crate) mod layers;

use crate::cache::{CHUNK, Directory, IMAGE_MAX, LONG_CHUNK};
use crate::error::{Error, Kind, Result};
use crate::fetch::Fetcher;
use crate::location::Location;
use crate::open::first_reads::{FirstReads, HEAD};
use crate::options::Options;
use crate::registry::{self, IndexPlace};
use crate::runtime::runtime;
use crate::source::{self, Identity, Opened};
use crate::store::{Cached, Extent, RemoteStore};
use crate::verify::chunk_index;
use crate::verify::{VERIFY_ATTEMPTS, Verifier};
use sha2::{Digest, Sha256};
use std::io;
use std::sync::Arc;
use std::time::Instant;
use tuff_verity::Root;

/// Opens the image at a location as a store. Its identity is the same for the life of the store.
///
/// With a root hash, the store has only bytes that match it.
///
/// # Errors
/// Kinds of [`Error`], each with one sentence that names the location.
pub fn open(location: &Location, options: &Options) -> Result<Arc<RemoteStore>> {
    let store = open_store(location, options)?;
    location.connections().opened();
    Ok(store)
}

/// Opens a store, which may be a part of an image.
pub(crate) fn open_store(location: &Location, options: &Options) -> Result<Arc<RemoteStore>> {
    let place = location.to_string();
    if let Some(path) = location.local_path() {
        return Ok(Arc::new(RemoteStore::local(path, place)?));
    }
    let runtime = runtime()?;
    let has_root = options.root_hash.is_some();
    let opening = Opening { options, place };
    let start = Instant::now();
    let mut attempts = 0;
    loop {
        let opened = runtime.block_on(source::open(location, HEAD, has_root, options))?;
        let result = opening.store(opened);
        attempts += 1;
        // A first answer that is wrong is requested again, like other parts. An object that is replaced between the first requests
        // is opened again: nothing was read from it yet.
        let is_wrong = |e: &Error| matches!(e.kind(), Kind::Corrupt | Kind::Changed);
        let is_wrong = result.as_ref().is_err_and(is_wrong);
        let is_last = attempts == VERIFY_ATTEMPTS || start.elapsed() >= options.retry.deadline;
        if !is_wrong || is_last {
            return result.map(Arc::new);
        }
    }
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
                Some(registry::root(hex).ok_or_else(|| self.error(Kind::Unsupported, what))?)
            }
            (None, None) => None,
        };
        let object = opened.object;
        let size = object.identity().size;
        if size > IMAGE_MAX {
            let what = format_args!(
                "the size of the object is stated as {size} bytes, more than the largest image of {IMAGE_MAX} bytes"
            );
            return Err(self.error(Kind::Limit, what));
        }
        let index_len = opened
            .index
            .as_ref()
            .map_or(0, |index| size.saturating_sub(index.start));
        if index_len > chunk_index::LEN_MAX {
            let what = format_args!(
                "the length of the chunk index is stated as {index_len} bytes, more than {} bytes",
                chunk_index::LEN_MAX
            );
            return Err(self.error(Kind::Limit, what));
        }
        let directory = Directory::open(&self.options.cache, self.options.cache_max);
        let directory = Arc::new(directory.map_err(|e| self.cache_error(e))?);
        let key = key(object.identity(), root, opened.index.as_ref());
        // The chunk index after an image is no part of it.
        let index = opened.index.as_ref();
        let end = index.map_or(size, |index| index.start.min(size));
        let is_verified = root.is_some() || opened.index.is_some();
        let first = FirstReads {
            place: &self.place,
            object: &object,
            head: opened.head,
            index: opened.index,
            stated: opened.stated,
        };
        let start = first.stated.start.clone();
        let image = |verifier: Option<&Arc<Verifier>>| {
            let kept = verifier.map_or(size, |verifier| verifier.kept(size));
            let chunk = verifier.map_or(LONG_CHUNK, |verifier| verifier.chunk_size());
            let cache = directory.image(&key, kept, chunk);
            cache.map_err(|e| self.cache_error(e))
        };
        let known = first.known(root, &directory, &key);
        let found = match known.is_some() || !is_verified {
            true => Some(image(known.as_ref())?).filter(|cache| cache.is_present(0)),
            false => None,
        };
        let (cache, verifier) = match found {
            Some(cache) => (cache, known),
            None => {
                let bytes = first.run(root, known, &directory, &key)?;
                let cache = image(bytes.verifier.as_ref())?;
                bytes.store(&directory, &cache);
                (cache, bytes.verifier)
            }
        };
        let of_tree = verifier.as_ref().filter(|_| root.is_some());
        let extent = Extent {
            image: of_tree.map_or(end, |verifier| verifier.covered()),
            verified: of_tree.map_or(end, |verifier| verifier.end()),
            whole: of_tree.map_or(end, |verifier| verifier.kept(end).max(verifier.end())),
        };
        let cache = Arc::new(cache);
        object.traced().set_cache(&cache);
        let fetcher = Fetcher::new(
            object,
            (Arc::clone(&directory), key.clone(), Arc::clone(&cache)),
            verifier.clone(),
            self.place.clone(),
            runtime()?.handle().clone(),
            self.options,
        );
        let cached = Cached {
            directory,
            key,
            cache,
            verifier,
            root,
            fetcher: Arc::new(fetcher),
            start,
            process: std::process::id(),
        };
        Ok(RemoteStore::remote(extent, self.place.clone(), cached))
    }
}

/// Name of an image in the cache: the place that it comes from, and what its parts are verified by.
///
/// A digest does not replace the place: parts are stored before all of the object is there to be compared with it. Images of
/// other places are shared by blocks, each of which is verified.
fn key(identity: &Identity, root: Option<Root>, index: Option<&IndexPlace>) -> String {
    let mut hash = Sha256::new();
    let index = index.map_or("", |index| index.digest.as_str());
    for text in [identity.origin.as_str(), &identity.validator, index] {
        hash.update((text.len() as u64).to_le_bytes());
        hash.update(text);
    }
    hash.update(identity.size.to_le_bytes());
    if let Some(root) = root {
        hash.update(root);
        // Versions up to 0.2.0 kept longer chunks of such images.
        hash.update(CHUNK.to_le_bytes());
    }
    hex::encode(hash.finalize())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::of_url;

    fn identity(origin: &str) -> Identity {
        Identity {
            validator: "modified Thu, 26 Nov 2026 12:00:00 GMT".to_owned(),
            origin: of_url(origin),
            size: 4096,
        }
    }

    #[test]
    fn images_of_different_places_have_different_names() {
        let urls = [
            "http://h/i",
            "https://h/i",
            "http://h:81/i",
            "http://g/i",
            "http://h/I",
            "http://h/i/",
            "http://h/i?v=1",
            "http://h/i?v=2",
            "http://h/i?v=1&w=2",
            "http://h/i?",
            "http://user@h/i",
            "http://other@h/i",
        ];
        let names: Vec<String> = urls.map(|url| key(&identity(url), None, None)).into();
        let mut distinct = names.clone();
        distinct.sort();
        distinct.dedup();
        assert_eq!(distinct.len(), urls.len());
        // A password may be renewed, and a fragment is never sent. Hosts have no case.
        for same in ["http://h:80/i", "http://H/i#f"] {
            assert_eq!(key(&identity(same), None, None), names[0], "{same}");
        }
        for same in ["http://user:a@h/i", "http://us%65r:b@h/i"] {
            assert_eq!(key(&identity(same), None, None), names[10], "{same}");
        }
        assert!(names.iter().all(|name| name.len() == 64));
    }

    #[test]
    fn images_that_are_verified_by_different_digests_have_different_names() {
        let index = |digest: &str| IndexPlace {
            start: 4096,
            digest: digest.to_owned(),
        };
        let (a, b) = (index("a"), index("b"));
        let identity = identity("http://h/i");
        let mut names = [
            key(&identity, None, None),
            key(&identity, Some([0; 32]), None),
            key(&identity, Some([1; 32]), None),
            key(&identity, None, Some(&a)),
            key(&identity, None, Some(&b)),
        ];
        names.sort();
        assert!(names.windows(2).all(|pair| pair[0] != pair[1]));
    }
}
