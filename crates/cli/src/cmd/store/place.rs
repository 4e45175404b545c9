//! Places of backup stores: directories, and prefixes of buckets.

use std::path::Path;
use tuff_backup::{Store, StoreCompression};
use tuff_erofs::Result;

/// Opens a store for reading, or for a run that writes.
pub(in crate::cmd) fn open(path: &Path, writes: bool) -> Result<Store> {
    match bucket(path)? {
        None if writes => Store::open_to_write(path),
        None => Store::open(path),
        Some(place) => place.open(writes),
    }
}

/// True if there is a store.
pub(in crate::cmd) fn is_at(path: &Path) -> Result<bool> {
    match bucket(path)? {
        None => Ok(Store::is_at(path)),
        Some(place) => place.is_store(),
    }
}

/// Makes a store.
pub(in crate::cmd) fn create(path: &Path, compression: StoreCompression) -> Result<()> {
    match bucket(path)? {
        None => Store::create(path, compression),
        Some(place) => place.create(compression),
    }
}

#[cfg(feature = "remote")]
use in_bucket::bucket;

#[cfg(feature = "remote")]
mod in_bucket {
    use std::io;
    use std::ops::Range;
    use std::path::{Path, PathBuf};
    use std::sync::Arc;
    use tuff_backup::{Bucket, Object, Store, StoreCompression};
    use tuff_erofs::{Error, Result};
    use tuff_remote::BucketPrefix;
    use tuff_store::ReadAt;

    /// Store in a bucket.
    pub(super) struct Place {
        bucket: Arc<dyn Bucket>,
        /// Directory of copies.
        copies: PathBuf,
    }

    /// Returns the bucket that a path names as a URL.
    pub(in super::super) fn bucket(path: &Path) -> Result<Option<Place>> {
        let Some(url) = path.to_str().filter(|text| text.starts_with("s3://")) else {
            return Ok(None);
        };
        let prefix = BucketPrefix::parse(url).map_err(|e| Error::usage(e.to_string()))?;
        let cache = tuff_remote::default_cache();
        let cache = cache.ok_or_else(|| Error::usage("HOME is not set, where copies are kept"))?;
        // Stores have identifiers, by which equal names are told apart.
        let name: String = prefix
            .url()
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
            .take(200)
            .collect();
        Ok(Some(Place {
            bucket: Arc::new(Prefix(prefix)),
            copies: cache.join("stores").join(name),
        }))
    }

    impl Place {
        pub(super) fn open(self, writes: bool) -> Result<Store> {
            Store::open_bucket(self.bucket, &self.copies, writes)
        }

        pub(super) fn is_store(&self) -> Result<bool> {
            Store::is_in_bucket(&*self.bucket)
        }

        pub(super) fn create(&self, compression: StoreCompression) -> Result<()> {
            Store::create_in_bucket(&*self.bucket, compression)
        }
    }

    #[derive(Debug)]
    struct Prefix(BucketPrefix);

    impl Bucket for Prefix {
        fn url(&self) -> String {
            self.0.url()
        }

        fn list(&self) -> io::Result<Vec<Object>> {
            let objects = self.0.list()?.into_iter().map(|object| Object {
                name: object.name,
                len: object.len,
                tag: object.tag,
                modified: object.modified,
            });
            Ok(objects.collect())
        }

        fn read(&self, name: &str, range: Range<u64>) -> io::Result<Vec<u8>> {
            self.0.read(name, range)
        }

        fn create(&self, name: &str, bytes: &[u8]) -> io::Result<String> {
            self.0.create(name, bytes)
        }

        fn replace(&self, name: &str, bytes: &[u8], tag: &str) -> io::Result<String> {
            self.0.replace(name, bytes, tag)
        }

        fn upload(&self, name: &str, content: Arc<dyn ReadAt>) -> io::Result<()> {
            self.0.upload(name, &content)
        }

        fn remove(&self, name: &str) -> io::Result<()> {
            self.0.remove(name)
        }
    }
}

/// Place that a program without network clients never has.
#[cfg(not(feature = "remote"))]
enum Place {}

#[cfg(not(feature = "remote"))]
impl Place {
    fn open(self, _: bool) -> Result<Store> {
        match self {}
    }

    fn is_store(&self) -> Result<bool> {
        match *self {}
    }

    fn create(&self, _: StoreCompression) -> Result<()> {
        match *self {}
    }
}

#[cfg(not(feature = "remote"))]
fn bucket(path: &Path) -> Result<Option<Place>> {
    match path.to_str().is_some_and(|text| text.starts_with("s3://")) {
        true => Err(tuff_erofs::Error::usage(format_args!(
            "{}: this program was built without network clients",
            path.display()
        ))),
        false => Ok(None),
    }
}
