//! Whole images from a location, in order, through the cache.

pub(crate) mod layout;

use crate::error::{Error, Kind, Result};
use crate::open::images::OpenImage;
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
    ///
    /// Parity after the tree counts if the image has a digest: a root hash does not cover it.
    pub size: u64,
    /// Root hash that parts are verified by.
    pub root_hash: Option<Root>,
    /// Digest of the blob in a registry, which is verified at the end.
    pub digest: Option<String>,
    store: Arc<RemoteStore>,
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
        Ok(stores.map(Self::of_store).collect())
    }

    fn of_store(store: Arc<RemoteStore>) -> Self {
        Self {
            size: store.extent().whole,
            root_hash: store.root_hash(),
            digest: store.digest(),
            place: store.place().to_owned(),
            store,
        }
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
        let verified = image.store.extent().verified;
        let part = match self.at < verified {
            true => self.read_verified(verified)?,
            false => self.read_unverified(image.size)?,
        };
        if image.digest.is_some() {
            self.hash.update(&part);
        }
        self.at += part.len() as u64;
        if self.at >= image.size {
            self.verify()?;
        }
        Ok(part)
    }

    /// Reads the next part before `end` through the cache.
    fn read_verified(&self, end: u64) -> Result<Vec<u8>> {
        let image = self.image;
        let len = PART.min(end - self.at);
        let mut part = vec![0; len as usize]; // fits: at most PART
        image.store.will_need(self.at, AHEAD);
        let mut done = 0;
        while done < part.len() {
            let at = self.at + done as u64;
            let read = image.store.read_with_tree_at(&mut part[done..], at);
            let read = read.map_err(|e| Error::read(&image.place, &e))?;
            if read == 0 {
                let what = format!("it ends at byte {at}");
                return Err(Error::new(Kind::Changed, &image.place, what));
            }
            done += read;
        }
        image.store.done_with(self.at, len);
        Ok(part)
    }

    /// Reads the next part before `end`, which the digest of the whole covers.
    fn read_unverified(&self, end: u64) -> Result<Vec<u8>> {
        let range = self.at..end.min(self.at + PART);
        let part = self.image.store.read_unverified(range.clone())?;
        match part.is_empty() {
            true => {
                let what = format!("it ends at byte {}", range.start);
                Err(Error::new(Kind::Changed, &self.image.place, what))
            }
            false => Ok(part),
        }
    }

    /// Compares the digest of all bytes.
    fn verify(&mut self) -> Result<()> {
        let mut hash = std::mem::take(&mut self.hash);
        if self.image.digest.is_some() {
            // The chunk index after the image.
            let end = self.image.store.object_size();
            let mut at = self.at;
            while at < end {
                let part = end.min(at + PART);
                hash.update(self.image.store.read_unverified(at..part)?);
                at = part;
            }
        }
        let found = digest_of(hash);
        match &self.image.digest {
            Some(requested) if *requested != found => Err(self.image.store.wrong_digest()),
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
