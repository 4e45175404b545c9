//! Remote images as stores for the reader of images.

use crate::cache::{CHUNK, ImageCache};
use crate::error::{Error, Kind, Result};
use crate::fetch::Fetcher;
use crate::verifier::Verifier;
use std::io;
use std::sync::Arc;
use tuff_store::ReadAt;

/// Number of chunks that a hint to read ahead fetches at most.
const HINT_MAX: u64 = 64;

/// Number of times that a chunk is looked for in a cache that other processes change.
const ATTEMPTS_MAX: u32 = 16;

/// Store of a remote image.
pub(crate) struct RemoteStore {
    pub(crate) size: u64,
    pub(crate) cache: Arc<ImageCache>,
    pub(crate) verifier: Option<Arc<Verifier>>,
    pub(crate) fetcher: Arc<Fetcher>,
    pub(crate) place: String,
}

impl RemoteStore {
    /// Reads a part of one chunk, from the cache or from the source.
    fn read_chunk(&self, chunk: u64, skip: usize, buf: &mut [u8]) -> Result<()> {
        let verify = |bytes: &[u8]| {
            let verifier = self.verifier.as_ref();
            verifier.is_none_or(|verifier| verifier.verify(chunk * CHUNK, bytes).is_ok())
        };
        for _ in 0..ATTEMPTS_MAX {
            if self.cache.read(chunk, skip, buf, verify) {
                return Ok(());
            }
            if let Some(part) = self.fetcher.fetch(chunk)? {
                part.copy(chunk, skip, buf);
                return Ok(());
            }
        }
        let what = "the cache is damaged or changes all the time";
        Err(Error::new(Kind::Unavailable, &self.place, what))
    }
}

impl ReadAt for RemoteStore {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let left = self.size.saturating_sub(offset);
        let len = buf.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let mut done = 0;
        if len as u64 > CHUNK {
            self.will_need(offset, len as u64);
        }
        while done < len {
            let at = offset + done as u64;
            let (chunk, skip) = (at / CHUNK, (at % CHUNK) as usize); // fits: below CHUNK
            let part = (len - done).min(CHUNK as usize - skip);
            self.read_chunk(chunk, skip, &mut buf[done..done + part])?;
            done += part;
        }
        Ok(done)
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn will_need(&self, offset: u64, len: u64) {
        let end = offset.saturating_add(len).min(self.size).div_ceil(CHUNK);
        let first = offset / CHUNK;
        if first < end {
            self.fetcher.prefetch(first..end.min(first + HINT_MAX));
        }
    }
}
