//! First requests for an image: its first bytes, then its metadata and hash tree.

use crate::cache::{CHUNK, Directory, ImageCache};
use crate::chunk_index::{self, ChunkIndex};
use crate::error::{Error, Kind, Result};
use crate::registry::{IndexPlace, digest};
use crate::runtime::runtime;
use crate::source::Object;
use crate::verifier::{TreePlace, Verifier, cached_tree, header_place, metadata, tree_file_head};
use std::io::Read;
use std::iter;
use std::sync::Arc;
use tuff_store::MemStore;
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

    /// Opens the hash tree, if there is a root hash, or else the chunk index, and stores what was read in the cache.
    pub(crate) fn run(
        mut self,
        root: Option<Root>,
        directory: &Directory,
        key: &str,
        cache: &ImageCache,
    ) -> Result<Option<Arc<Verifier>>> {
        let size = self.object.identity().size;
        let index = self.index.take().filter(|_| root.is_none());
        let known = match (root, &index) {
            (Some(root), _) => directory
                .tree(key)
                .and_then(|file| cached_tree(file, root))
                .ok()
                .map(Arc::new),
            (None, Some(place)) => cached_index(directory, key, place),
            (None, None) => None,
        };
        let is_verified = root.is_some() || index.is_some();
        if cache.is_present(0) && (known.is_some() || !is_verified) {
            return Ok(known);
        }
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
        let parts = [(0, &self.head), (from, &tail)];
        for (at, bytes) in parts.into_iter().filter(|(_, bytes)| !bytes.is_empty()) {
            if let Some(verifier) = &verifier {
                let verified = verifier.verify(at, bytes);
                // Left to the reads, which repeat the request and report what remains.
                if verified.is_err() {
                    continue;
                }
            }
            // A full disk does not keep readers from an image.
            let stored = cache.store(at / CHUNK, bytes);
            let _ = stored.and_then(|stored| directory.charge(stored, Some(cache)));
        }
        Ok(verifier)
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
        // Without the file, the next process reads it again.
        let _ = directory.store_tree(key, [Ok::<_, Error>(bytes)]);
        Ok(index.map(|index| Arc::new(Verifier::Index(index))))
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
        let wrong = |what: String| Error::new(Kind::Unsupported, self.place, what);
        if start >= size {
            return Err(wrong(
                "there is a root hash, but no hash tree after the image".to_owned(),
            ));
        }
        let read = |from: u64, to: u64, is_fresh: bool| -> Result<Vec<u8>> {
            let known = known.iter().filter(|_| !is_fresh).find_map(|(at, bytes)| {
                // Fits: the bytes are in memory.
                let skip = from.checked_sub(*at)? as usize;
                bytes.get(skip..skip + (to - from) as usize)
            });
            known.map_or_else(|| self.read(from, to), |bytes| Ok(bytes.to_vec()))
        };
        let load = |is_fresh: bool| -> Result<Verifier> {
            let header = read(start, (start + HEADER_READ).min(size), is_fresh)?;
            let place = TreePlace::new(&header, start, size).map_err(wrong)?;
            let parts = || {
                // Fits: 4 MiB.
                let starts = (place.start..place.end).step_by(REQUEST_MAX as usize);
                starts.map(|at| read(at, (at + REQUEST_MAX).min(place.end), is_fresh))
            };
            let file = iter::once(Ok(tree_file_head(start))).chain(parts());
            let verifier = match directory.store_tree(key, file)? {
                Ok(()) => directory.tree(key).and_then(|file| cached_tree(file, root)),
                Err(e) if place.end - place.start > TREE_IN_MEMORY_MAX => {
                    let what = format_args!("cannot keep the hash tree in the cache: {e}");
                    return Err(Error::new(Kind::Unavailable, self.place, what));
                }
                // A full disk does not keep readers from an image. Its tree is in memory then.
                Err(_) => {
                    let tree = parts().collect::<Result<Vec<_>>>()?.concat();
                    Verifier::tree(Arc::new(MemStore::new(tree)), start, root)
                }
            };
            let failed = |e| Error::new(Kind::Corrupt, self.place, format_args!("hash tree: {e}"));
            verifier.map_err(failed)
        };
        load(false).or_else(|_| load(true)).map(Arc::new)
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
    Some(Arc::new(Verifier::Index(index)))
}
