//! Objects of backup stores, in buckets and directories, and the copies that a host has of them.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use tuff_backup::{Bucket, Folder, StoreKey};
use tuff_erofs::{Error, Result};

/// Objects of a store: those of a bucket, or the files of a directory.
pub(super) struct Objects {
    pub(super) bucket: Arc<dyn Bucket>,
    pub(super) is_remote: bool,
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
    pub(super) fn copies(&self) -> Result<PathBuf> {
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
    // Services have no HOME, but their users have a home directory.
    let home = || std::env::home_dir().filter(|home| home.is_absolute());
    let base = dir(variable).or_else(|| Some(home()?.join(default)));
    base.map(|base| base.join("tuff"))
}

/// Path of a directory that may not exist yet, the same from wherever it is named.
fn absolute(path: &Path) -> PathBuf {
    std::fs::canonicalize(path)
        .or_else(|_| std::path::absolute(path))
        .unwrap_or_else(|_| path.to_owned())
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
