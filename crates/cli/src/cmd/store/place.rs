//! Places of backup stores: directories, and prefixes of buckets.

use super::keys::KeyArgs;
use super::objects::Objects;
use std::path::{Path, PathBuf};
use tuff_backup::{Store, StoreCompression};
use tuff_erofs::Result;

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
        false => Store::is_at(path),
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
