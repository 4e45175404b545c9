//! First requests for an image: its first bytes, then its metadata and hash tree.

use crate::cache::{CHUNK, Directory, ImageCache};
use crate::error::{Error, Kind, Result};
use crate::location::sha256_hex;
use crate::registry::{IndexPlace, digest};
use crate::runtime::runtime;
use crate::source::Object;
use crate::verify::chunk_index::{self, ChunkIndex};
use crate::verify::{TreeRange, Verifier, cached_tree, header_place, metadata, tree_file_head};
use std::io::{self, Read};
use std::iter;
use std::sync::Arc;
use tuff_store::{FileStore, MemStore, ReadAt};
use tuff_verity::Root;

/// Bytes of the first request: the superblock, and the whole of a small image.
pub(crate) const HEAD: u64 = CHUNK;

/// Longest metadata that is fetched before the first read. Unit: bytes.
const METADATA_MAX: u64 = 16 << 20;

/// Bytes before the metadata that are fetched with it: a share of its length, and at most this. Unit: bytes.
const DIRECTORIES_SHARE: u64 = 8;
const DIRECTORIES_MAX: u64 = 1 << 20;

/// Bytes of the request for the header of a hash tree. Unit: bytes.
const HEADER_READ: u64 = 4096;

/// Longest hash tree that is kept in memory if the cache cannot store it: that of an image of 2 GiB. Unit: bytes.
const TREE_IN_MEMORY_MAX: u64 = 17 << 20;

/// Longest of the first requests, so that each can end before its deadline. Unit: bytes.
const REQUEST_MAX: u64 = 4 << 20;

/// First requests for an image: its first bytes, then its metadata and hash tree.
pub(crate) struct FirstReads<'a> {
    /// Location of the image, for errors.
    pub(crate) place: &'a str,
    pub(crate) object: &'a Arc<dyn Object>,
    /// First bytes of the object, if they came with its identity.
    pub(crate) head: Vec<u8>,
    /// Chunk index that the reference names.
    pub(crate) index: Option<IndexPlace>,
}

impl FirstReads<'_> {
    /// Reads a range, in one request unless it is long.
    fn read(&self, start: u64, end: u64) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let mut at = start;
        while at < end {
            let next = (at + REQUEST_MAX).min(end);
            bytes.extend_from_slice(&runtime()?.block_on(self.object.read(at..next))?);
            at = next;
        }
        Ok(bytes)
    }

    /// Verifier in the cache: the hash tree, if there is a root hash, or else the chunk index. `None` without one that is valid.
    pub(crate) fn known(
        &self,
        root: Option<Root>,
        directory: &Directory,
        key: &str,
    ) -> Option<Arc<Verifier>> {
        match (root, &self.index) {
            (Some(root), _) => {
                // The superblock in the cache states what the tree must cover.
                let data = FileStore::new(directory.image_file(key).ok()?).ok()?;
                let tree = directory.tree(key).ok()?;
                let known = cached_tree(tree, root, Arc::new(data), self.has_digest());
                known.ok().map(Arc::new)
            }
            (None, Some(place)) => cached_index(directory, key, place),
            (None, None) => None,
        }
    }

    /// True if the object has a digest, by which all of it can be verified.
    fn has_digest(&self) -> bool {
        sha256_hex(&self.object.identity().validator).is_some()
    }

    /// Reads the first bytes and the metadata, and opens the hash tree, if there is a root hash, or else the chunk index.
    pub(crate) fn run(
        mut self,
        root: Option<Root>,
        known: Option<Arc<Verifier>>,
        directory: &Directory,
        key: &str,
    ) -> Result<FirstBytes> {
        let size = self.object.identity().size;
        let index = self.index.take().filter(|_| root.is_none());
        if self.head.is_empty() {
            self.head = self.read(0, HEAD.min(size))?;
        }
        let (meta, end) = metadata(&self.head).unwrap_or((size, size));
        // Whole chunks from the first one with metadata on, if that is not most of a large image. `tuff build` puts
        // directories of more than a block before the metadata.
        let meta = meta.min(size);
        let directories = ((size - meta) / DIRECTORIES_SHARE).min(DIRECTORIES_MAX);
        let from = meta.saturating_sub(directories) / CHUNK * CHUNK;
        let from = if size - from <= METADATA_MAX {
            from.max(CHUNK)
        } else {
            size
        };
        let tail = match from < size {
            true => self.read(from, size)?,
            false => Vec::new(),
        };
        let verifier = match (root, known, index) {
            (_, Some(known), _) => Some(known),
            (Some(root), None, _) => {
                let known = [(0, &self.head[..]), (from, &tail[..])];
                Some(self.tree(root, end, known, directory, key)?)
            }
            (None, None, Some(place)) => self.chunk_index(&place, directory, key)?,
            (None, None, None) => None,
        };
        Ok(FirstBytes {
            verifier,
            parts: [(0, self.head), (from, tail)],
        })
    }

    /// Reads the chunk index of a blob, and stores it in the cache. `None` if it has another form than this reader verifies.
    fn chunk_index(
        &self,
        place: &IndexPlace,
        directory: &Directory,
        key: &str,
    ) -> Result<Option<Arc<Verifier>>> {
        let corrupt = |what: &str| Error::new(Kind::Corrupt, self.place, what);
        let bytes = self.read(place.start, self.object.identity().size)?;
        if digest(&bytes) != place.digest {
            return Err(corrupt(
                "the chunk index does not match its digest in the manifest",
            ));
        }
        let index = ChunkIndex::decode(&bytes).map_err(corrupt)?;
        let verifier = index.map(|index| Verifier::index(index, place.start));
        let verifier = verifier.transpose();
        let verifier = verifier.map_err(|e| corrupt(&format!("chunk index: {e}")))?;
        // Without the file, the next process reads it again.
        let _ = directory.store_tree(key, [Ok::<_, Error>(bytes)]);
        Ok(verifier.map(Arc::new))
    }

    /// Reads the hash tree after an image of `end` bytes, and stores it in the cache. `known`: parts of the object that
    /// were read already, and their positions.
    fn tree(
        &self,
        root: Root,
        end: u64,
        known: [(u64, &[u8]); 2],
        directory: &Directory,
        key: &str,
    ) -> Result<Arc<Verifier>> {
        let size = self.object.identity().size;
        let start = header_place(end);
        // The next answer of the server may be right.
        let wrong = |what: String| Error::new(Kind::Corrupt, self.place, what);
        if start >= size {
            return Err(wrong(
                "there is a root hash, but no hash tree after the image".to_owned(),
            ));
        }
        let read = |from: u64, to: u64| -> Result<Vec<u8>> {
            let known = known.iter().find_map(|(at, bytes)| {
                // Fits: the bytes are in memory.
                let skip = from.checked_sub(*at)? as usize;
                bytes.get(skip..skip + (to - from) as usize)
            });
            known.map_or_else(|| self.read(from, to), |bytes| Ok(bytes.to_vec()))
        };
        let header = read(start, (start + HEADER_READ).min(size))?;
        let range = TreeRange::new(&header, start, size).map_err(wrong)?;
        let parts = || {
            // Fits: 4 MiB.
            let starts = (range.start..range.end).step_by(REQUEST_MAX as usize);
            starts.map(|at| read(at, (at + REQUEST_MAX).min(range.end)))
        };
        let data = || {
            Arc::new(FirstData {
                head: self.head.clone(),
                object: Arc::clone(self.object),
            })
        };
        let has_digest = self.has_digest();
        let file = iter::once(Ok(tree_file_head(start))).chain(parts());
        let verifier = match directory.store_tree(key, file)? {
            Ok(()) => directory
                .tree(key)
                .and_then(|file| cached_tree(file, root, data(), has_digest)),
            Err(e) if range.end - range.start > TREE_IN_MEMORY_MAX => {
                let what = format_args!("cannot keep the hash tree in the cache: {e}");
                return Err(Error::new(Kind::Unavailable, self.place, what));
            }
            // A full disk does not keep readers from an image. Its tree is in memory then.
            Err(_) => {
                let tree = parts().collect::<Result<Vec<_>>>()?.concat();
                let tree = Arc::new(MemStore::new(tree));
                Verifier::tree(tree, start, root, data(), has_digest)
            }
        };
        let verifier = verifier.map_err(|e| wrong(format!("hash tree: {e}")));
        verifier.map(Arc::new)
    }
}

/// Bytes of the first reads, and what verifies the image.
pub(crate) struct FirstBytes {
    pub(crate) verifier: Option<Arc<Verifier>>,
    /// Parts of the object, and their positions.
    parts: [(u64, Vec<u8>); 2],
}

impl FirstBytes {
    /// Stores in the cache what the verifier accepts.
    pub(crate) fn store(&self, directory: &Directory, cache: &ImageCache) {
        for (at, bytes) in &self.parts {
            // Fits: at most the length of the part.
            let kept = cache.size().saturating_sub(*at).min(bytes.len() as u64) as usize;
            let bytes = &bytes[..kept];
            // Bytes that do not match are left to the reads, which repeat the request and report what remains.
            let is_right = |verifier: &Arc<Verifier>| verifier.verify(*at, bytes).is_ok();
            if bytes.is_empty() || !self.verifier.as_ref().is_none_or(is_right) {
                continue;
            }
            // A full disk does not keep readers from an image.
            let stored = cache.store(at / CHUNK, bytes);
            let _ = stored.and_then(|stored| directory.charge(stored, Some(cache)));
        }
    }
}

/// Object whose first bytes were read.
struct FirstData {
    head: Vec<u8>,
    object: Arc<dyn Object>,
}

impl ReadAt for FirstData {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let known = usize::try_from(offset)
            .ok()
            .and_then(|at| self.head.get(at..));
        if let Some(known) = known.filter(|known| !known.is_empty()) {
            let n = known.len().min(buf.len());
            buf[..n].copy_from_slice(&known[..n]);
            return Ok(n);
        }
        let end = self.size().min(offset.saturating_add(buf.len() as u64));
        if offset >= end {
            return Ok(0);
        }
        let bytes = runtime()?.block_on(self.object.read(offset..end))?;
        let n = bytes.len().min(buf.len());
        buf[..n].copy_from_slice(&bytes[..n]);
        Ok(n)
    }

    fn size(&self) -> u64 {
        self.object.identity().size
    }
}

/// Opens the chunk index in the cache.
fn cached_index(directory: &Directory, key: &str, place: &IndexPlace) -> Option<Arc<Verifier>> {
    let mut bytes = Vec::new();
    let file = directory.tree(key).ok()?;
    file.take(chunk_index::LEN_MAX)
        .read_to_end(&mut bytes)
        .ok()?;
    if digest(&bytes) != place.digest {
        return None;
    }
    let index = ChunkIndex::decode(&bytes).ok()??;
    let verifier = Verifier::index(index, place.start).ok()?;
    Some(Arc::new(verifier))
}
