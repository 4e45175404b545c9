//! Whole images from a location, in order, through the cache.

use crate::error::{Error, Kind, Result};
use crate::image::OpenImage;
use crate::store::{RemoteStore, digest_of};
use sha2::{Digest, Sha256};
use std::sync::Arc;
use tuff_store::ReadAt;
use tuff_verity::Root;

/// Size of the parts. Unit: bytes.
const PART: u64 = 1 << 20;

/// Number of bytes that are fetched ahead of the part that is wanted.
const AHEAD: u64 = 8 << 20;

/// Image that is read as a whole.
pub struct WholeImage {
    /// Size of the image with its hash tree, without the chunk index of a blob. Unit: bytes.
    pub size: u64,
    /// Root hash that parts are verified by.
    pub root_hash: Option<Root>,
    /// Digest of the blob in a registry, which is verified at the end.
    pub digest: Option<String>,
    store: Arc<RemoteStore>,
    /// Chunk index after the image, which the digest covers.
    tail: Vec<u8>,
    place: String,
}

impl WholeImage {
    /// Prepares images to be read: each, then its devices in the order of the device table.
    ///
    /// # Errors
    /// Kinds of [`Error`], each with one sentence that names the location.
    pub fn all(images: Vec<OpenImage>) -> Result<Vec<Self>> {
        let stores = images
            .into_iter()
            .flat_map(|image| std::iter::once(image.store).chain(image.devices));
        stores.map(Self::of_store).collect()
    }

    fn of_store(store: Arc<RemoteStore>) -> Result<Self> {
        Ok(Self {
            size: store.size(),
            root_hash: store.root_hash(),
            digest: store.digest(),
            tail: store.tail()?,
            place: store.place().to_owned(),
            store,
        })
    }

    /// Parts of the image in their order. The last one is an error if the whole does not match its digest.
    pub fn parts(&self) -> impl Iterator<Item = Result<Vec<u8>>> {
        Parts {
            image: self,
            at: 0,
            hash: Sha256::new(),
            has_ended: false,
        }
    }
}

struct Parts<'a> {
    image: &'a WholeImage,
    at: u64,
    hash: Sha256,
    has_ended: bool,
}

impl Parts<'_> {
    fn read(&mut self) -> Result<Vec<u8>> {
        let image = self.image;
        let len = PART.min(image.size - self.at);
        let mut part = vec![0; len as usize]; // fits: at most PART
        image.store.will_need(self.at, AHEAD);
        let read = image.store.read_exact_at(&mut part, self.at);
        read.map_err(|e| {
            let known = e.get_ref().and_then(|e| e.downcast_ref::<Error>());
            known
                .cloned()
                .unwrap_or_else(|| Error::new(Kind::Unavailable, &image.place, &e))
        })?;
        image.store.done_with(self.at, len);
        if image.digest.is_some() {
            self.hash.update(&part);
        }
        self.at += len;
        if self.at == image.size {
            self.verify()?;
        }
        Ok(part)
    }

    /// Compares the digest of all bytes.
    fn verify(&mut self) -> Result<()> {
        let mut hash = std::mem::take(&mut self.hash);
        hash.update(&self.image.tail);
        let found = digest_of(hash);
        match &self.image.digest {
            Some(wanted) if *wanted != found => Err(self.image.store.wrong_digest()),
            _ => Ok(()),
        }
    }
}

impl Iterator for Parts<'_> {
    type Item = Result<Vec<u8>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.has_ended {
            return None;
        }
        // An empty image has no part, and a digest like any other.
        let part = match self.image.size {
            0 => self.verify().err().map(Err),
            _ => Some(self.read()),
        };
        self.has_ended = self.at >= self.image.size || !matches!(part, Some(Ok(_)));
        part
    }
}
