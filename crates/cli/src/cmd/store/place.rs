//! Places of backup stores: directories, and prefixes of buckets.

use super::keys::KeyArgs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tuff_backup::{Bucket, Folder, Store, StoreCompression, StoreKey};
use tuff_erofs::{Error, Result};

/// Arguments that name a store.
#[derive(clap::Args)]
pub(in crate::cmd) struct StoreArgs {
    /// Directory of the store, or s3://BUCKET/PREFIX
    #[arg(value_name = "STORE")]
    pub(in crate::cmd) store: PathBuf,
    #[command(flatten)]
    pub(in crate::cmd) keys: KeyArgs,
}

impl StoreArgs {
    /// Opens the store for reading, or for a run that writes.
    pub(in crate::cmd) fn open(&self, writes: bool) -> Result<Store> {
        open(&self.store, &self.keys, writes)
    }
}

/// Objects of a store: those of a bucket, or the files of a directory.
pub(super) struct Objects {
    pub(super) bucket: Arc<dyn Bucket>,
    is_remote: bool,
}

impl Objects {
    pub(super) fn at(path: &Path) -> Result<Self> {
        let (bucket, is_remote): (Arc<dyn Bucket>, bool) = match bucket(path)? {
            Some(bucket) => (bucket, true),
            None => (Arc::new(Folder::new(&absolute(path))), false),
        };
        Ok(Self { bucket, is_remote })
    }

    /// Place of the store in messages and key files.
    pub(super) fn name(&self) -> String {
        self.bucket.url()
    }

    /// Identifier of the store if it is encrypted.
    pub(super) fn encrypted(&self) -> Result<Option<[u8; 16]>> {
        StoreKey::is_needed(&*self.bucket)
    }

    /// Directory of this host for copies of what is not content. Stores have identifiers, by which equal names are told apart.
    fn copies(&self) -> Result<PathBuf> {
        let name = self.name();
        let name = name.chars().map(|c| match c {
            c if c.is_ascii_alphanumeric() => c,
            _ => '-',
        });
        let name: String = name.take(200).collect();
        let cache = home("XDG_CACHE_HOME", ".cache");
        let cache = cache.ok_or_else(|| Error::usage("HOME is not set, where copies are kept"))?;
        Ok(cache.join("stores").join(name))
    }
}

/// Folder of Tuff below a directory of the user: the one that a variable names, or one in the home directory.
pub(super) fn home(variable: &str, default: &str) -> Option<PathBuf> {
    let dir = |name: &str| {
        let path = PathBuf::from(std::env::var_os(name)?);
        path.is_absolute().then_some(path)
    };
    let base = dir(variable).or_else(|| Some(dir("HOME")?.join(default)));
    base.map(|base| base.join("tuff"))
}

/// Path of a directory that may not exist yet, the same from wherever it is named.
fn absolute(path: &Path) -> PathBuf {
    std::fs::canonicalize(path)
        .or_else(|_| std::path::absolute(path))
        .unwrap_or_else(|_| path.to_owned())
}

/// Opens a store for reading, or for a run that writes.
pub(in crate::cmd) fn open(path: &Path, keys: &KeyArgs, writes: bool) -> Result<Store> {
    let objects = Objects::at(path)?;
    if let Some(id) = objects.encrypted()? {
        let key = keys.open(&objects, id)?;
        return Store::open_encrypted(objects.bucket.clone(), &key, &objects.copies()?, writes);
    }
    keys.refuse_plain(&objects)?;
    match objects.is_remote {
        true => Store::open_bucket(objects.bucket.clone(), &objects.copies()?, writes),
        false if writes => Store::open_to_write(path),
        false => Store::open(path),
    }
}

/// True if there is a store.
pub(in crate::cmd) fn is_at(path: &Path) -> Result<bool> {
    let objects = Objects::at(path)?;
    match objects.is_remote {
        true => Store::is_in_bucket(&*objects.bucket),
        false => Ok(Store::is_at(path)),
    }
}

/// Makes a store.
pub(in crate::cmd) fn create(
    path: &Path,
    compression: StoreCompression,
    keys: &KeyArgs,
    encrypt: bool,
) -> Result<()> {
    let objects = Objects::at(path)?;
    if encrypt {
        return keys.create(&objects, compression);
    }
    keys.refuse_plain(&objects)?;
    match objects.is_remote {
        true => Store::create_in_bucket(&*objects.bucket, compression),
        false => Store::create(path, compression),
    }
}

/// True if snapshots of a store are mounted through FUSE only, by this program: the kernel cannot read its objects.
pub(super) fn is_served(path: &Path) -> Result<bool> {
    let objects = Objects::at(path)?;
    Ok(objects.is_remote || objects.encrypted()?.is_some())
}

#[cfg(feature = "remote")]
use in_bucket::bucket;

#[cfg(feature = "remote")]
mod in_bucket {
    use std::io;
    use std::ops::Range;
    use std::path::Path;
    use std::sync::Arc;
    use tuff_backup::{Bucket, Object};
    use tuff_erofs::{Error, Result};
    use tuff_remote::BucketPrefix;
    use tuff_store::ReadAt;

    /// Returns the bucket that a path names as a URL.
    pub(super) fn bucket(path: &Path) -> Result<Option<Arc<dyn Bucket>>> {
        let Some(url) = path.to_str().filter(|text| text.starts_with("s3://")) else {
            return Ok(None);
        };
        let prefix = BucketPrefix::parse(url).map_err(|e| Error::usage(e.to_string()))?;
        Ok(Some(Arc::new(Prefix(prefix))))
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

#[cfg(not(feature = "remote"))]
fn bucket(path: &Path) -> Result<Option<Arc<dyn Bucket>>> {
    match path.to_str().is_some_and(|text| text.starts_with("s3://")) {
        true => Err(Error::usage(format_args!(
            "{}: this program was built without network clients",
            path.display()
        ))),
        false => Ok(None),
    }
}
