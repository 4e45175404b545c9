//! Encrypted stores: a bucket whose objects are [sealed](crate::seal), and which is otherwise as any other.
//!
//! ```text
//! store.json             format and identifier; the header, sealed
//! keys/1f0c2e3d.json     the key, wrapped for a password or a key file; see `keys`
//! all else               as in a bucket, sealed
//! ```

use crate::bucket::{Bucket, Object, STORE};
use crate::digest::Digest;
use crate::files::{self, TEXT_MAX};
use crate::keys::{self, FORMAT, KeyFile, Secret, StoreKey};
use crate::seal::{self, FRONT_LEN, ObjectKey, SealKey, Sealing, chunks_of};
use crate::store::{Store, StoreCompression, header_of};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use tuff_mkfs::{Error, Place, Result};
use tuff_store::ReadAt;
use zeroize::Zeroizing;

/// Name under which the header is sealed in `store.json`.
const HEADER: &str = "header";

/// File of the copies that has the number of the newest snapshot.
const NEWEST: &str = "newest";

/// Bucket of an encrypted store, for whoever has its key.
pub(crate) struct SealedBucket {
    bucket: Arc<dyn Bucket>,
    key: SealKey,
    names: Zeroizing<[u8; 32]>,
    /// Keys of objects that were read: their fronts are read once.
    opened: Mutex<HashMap<String, Arc<ObjectKey>>>,
}

impl fmt::Debug for SealedBucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SealedBucket of {}", self.bucket.url())
    }
}

fn damaged(name: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("{name}: the object is damaged, or is not what the store has sealed"),
    )
}

impl SealedBucket {
    pub(crate) fn new(bucket: Arc<dyn Bucket>, key: &StoreKey) -> Self {
        Self {
            bucket,
            key: key.objects(),
            names: key.names(),
            opened: Mutex::default(),
        }
    }

    /// Opens the header of the store.
    fn header(&self) -> io::Result<Vec<u8>> {
        let text = self.bucket.read(STORE, 0..TEXT_MAX)?;
        let value: Value = serde_json::from_slice(&text).unwrap_or_default();
        let sealed = hex::decode(value[HEADER].as_str().unwrap_or_default());
        let header = self.key.open(HEADER, &sealed.unwrap_or_default());
        header.ok_or_else(|| damaged(STORE))
    }

    fn opened(&self, name: &str) -> Option<Arc<ObjectKey>> {
        let opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        opened.get(name).cloned()
    }

    fn forget(&self, name: &str) {
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        opened.remove(name);
    }

    fn keep(&self, name: &str, front: &[u8]) -> io::Result<Arc<ObjectKey>> {
        let key = self.key.of_front(name, front);
        let key = Arc::new(key.ok_or_else(|| damaged(name))?);
        // Objects of data are read in parts, all others at once.
        if name.ends_with(".data") {
            let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
            opened.insert(name.to_owned(), Arc::clone(&key));
        }
        Ok(key)
    }
}

impl Bucket for SealedBucket {
    fn url(&self) -> String {
        self.bucket.url()
    }

    fn list(&self) -> io::Result<Vec<Object>> {
        let mut objects = self.bucket.list()?;
        objects.retain(|object| object.name != STORE && !keys::is_key(&object.name));
        for object in &mut objects {
            // One of another length is found to be damaged when it is read.
            object.len = seal::content_len(object.len).unwrap_or(0);
        }
        Ok(objects)
    }

    fn read(&self, name: &str, range: Range<u64>) -> io::Result<Vec<u8>> {
        if name == STORE {
            return self.header();
        }
        let (chunks, mut at) = chunks_of(&range);
        let mut key = self.opened(name);
        if chunks.start == 0 {
            at.start = 0;
        } else if key.is_none() {
            key = Some(self.keep(name, &self.bucket.read(name, 0..FRONT_LEN as u64)?)?);
        }
        // One byte more tells whether the object goes on.
        let mut sealed = self.bucket.read(name, at.start..at.end.saturating_add(1))?;
        let goes_on = sealed.len() as u64 > at.end - at.start;
        sealed.truncate(sealed.len() - usize::from(goes_on));
        let mut body = &sealed[..];
        if chunks.start == 0 {
            let (front, rest) = body
                .split_at_checked(FRONT_LEN)
                .ok_or_else(|| damaged(name))?;
            (key, body) = (Some(self.keep(name, front)?), rest);
        }
        let start = chunks.start * seal::CHUNK;
        if chunks.start > 0 && body.is_empty() {
            return Ok(Vec::new());
        }
        let opened = key.and_then(|key| key.open(chunks.start, body, !goes_on));
        let mut content = opened.ok_or_else(|| damaged(name))?;
        // Fits: it is in memory.
        let end = (range.end - start).min(content.len() as u64) as usize;
        content.truncate(end);
        content.drain(..((range.start - start) as usize).min(end));
        Ok(content)
    }

    fn create(&self, name: &str, bytes: &[u8]) -> io::Result<String> {
        self.bucket.create(name, &self.key.seal(name, bytes)?)
    }

    fn replace(&self, name: &str, bytes: &[u8], tag: &str) -> io::Result<String> {
        self.bucket.replace(name, &self.key.seal(name, bytes)?, tag)
    }

    fn upload(&self, name: &str, content: Arc<dyn ReadAt>) -> io::Result<()> {
        // It gets another salt.
        self.forget(name);
        let sealing = Sealing::new(&self.key, name, content)?;
        self.bucket.upload(name, Arc::new(sealing))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.forget(name);
        self.bucket.remove(name)
    }

    fn exclude(&self) -> io::Result<Option<File>> {
        self.bucket.exclude()
    }

    fn repair(&self, threads: usize) -> io::Result<(u64, Vec<String>)> {
        self.bucket.repair(threads)
    }

    /// A digest of content would tell those who know the content that the store has it.
    fn data_name(&self, digest: Digest) -> Digest {
        Digest(*blake3::keyed_hash(&self.names, &digest.0).as_bytes())
    }
}

impl Store {
    /// Makes an encrypted store in an empty place. `write` gets a new key file, which it must keep, unless there is a password.
    ///
    /// # Errors
    /// As [`create_in_bucket`](Self::create_in_bucket), and those of `write`, after which there is no store.
    pub fn create_encrypted(
        bucket: &dyn Bucket,
        compression: StoreCompression,
        password: Option<Zeroizing<String>>,
        write: &mut dyn FnMut(&KeyFile) -> Result<()>,
    ) -> Result<()> {
        let failed = |e| Error::io(Place::file(bucket.url()), "cannot create a backup store", e);
        let no_random = |e| Error::io(Place::image(), "cannot make a key", e);
        let id: [u8; 16] = seal::random().map_err(no_random)?;
        let cuts: [u8; 32] = seal::random().map_err(no_random)?;
        let header = header_of(compression, id, Some(cuts))?;
        Self::is_free(bucket)?;
        let key = StoreKey::new(id).map_err(no_random)?;
        let sealed = key.objects().seal(HEADER, header.as_bytes());
        let text = json!({
            "tuff-backup-store": FORMAT,
            "id": hex::encode(id),
            HEADER: hex::encode(sealed.map_err(failed)?),
        });
        // A store without a key could not be opened, so the key is first.
        let secret = match password {
            Some(password) => Secret::Password(password),
            None => {
                let file = KeyFile::new(id)?;
                write(&file)?;
                Secret::File(file)
            }
        };
        key.add(bucket, &secret)?;
        Self::create_header(bucket, format!("{text:#}\n").as_bytes())
    }

    /// Opens an encrypted store; see [`open_bucket`](Self::open_bucket).
    ///
    /// # Errors
    /// As those of `open_bucket`. `Usage` if the newest snapshot that this host has seen is gone: the store was put back to an
    /// earlier state.
    pub fn open_encrypted(
        bucket: Arc<dyn Bucket>,
        key: &StoreKey,
        copies: &Path,
        writes: bool,
    ) -> Result<Self> {
        let bucket_url = bucket.url();
        let sealed = SealedBucket::new(bucket, key);
        let mut store = Self::open_bucket(Arc::new(sealed), copies, writes)?;
        store.remembers = true;
        let path = copies.join(NEWEST);
        let known = files::read(&path, TEXT_MAX).unwrap_or_default();
        let known = String::from_utf8_lossy(&known).trim().parse().unwrap_or(0);
        if store.newest()? < known {
            return Err(Error::usage(format_args!(
                "{}: snapshot {known}, which this host has seen, is gone: the store was put back to an earlier state, or another host \
                 forgot the snapshot. If that is right, remove {}",
                bucket_url,
                path.display()
            )));
        }
        store.note_newest()?;
        Ok(store)
    }

    fn newest(&self) -> Result<u32> {
        let numbers = self.numbers("snapshots", ".json")?;
        Ok(numbers.last().copied().unwrap_or(0))
    }

    /// Notes the newest snapshot of an encrypted store in the directory of copies.
    pub(crate) fn note_newest(&self) -> Result<()> {
        if !self.remembers {
            return Ok(());
        }
        let text = format!("{}\n", self.newest()?);
        files::replace(&self.path.join(NEWEST), text.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::folder::Folder;
    use tuff_store::MemStore;

    #[test]
    fn data_that_is_uploaded_again_is_read_with_its_new_key() {
        let dir = tempfile::tempdir().unwrap();
        let key = StoreKey::new([1; 16]).unwrap();
        let bucket = SealedBucket::new(Arc::new(Folder::new(dir.path())), &key);
        let (name, len) = ("segments/00000001-00.data", 3 * seal::CHUNK);
        for byte in [1, 2] {
            let content = MemStore::new(vec![byte; len as usize]);
            bucket.upload(name, Arc::new(content)).unwrap();
            // Reads from the start on read the front in any case.
            assert_eq!(bucket.read(name, len - 9..len).unwrap(), [byte; 9]);
        }
    }
}
