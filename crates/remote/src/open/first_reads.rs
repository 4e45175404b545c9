//! First requests for an image: its first bytes, its metadata, and the hash blocks that verify them.
//!
//! ```text
//! manifest states where the metadata is:  head, metadata, hash blocks            one round trip
//! otherwise:                              head ──► metadata, hash blocks         two
//! ```
//!
//! The manifest only decides which bytes are asked for together: all of them are verified like others.

use crate::address::{Stated, sha256_hex};
use crate::cache::{Directory, ImageCache, LONG_CHUNK};
use crate::error::{Error, Kind, Result};
use crate::places::{STATED_MAX, header_place, metadata, metadata_range, root_inode};
use crate::registry::{IndexPlace, digest};
use crate::runtime::runtime;
use crate::source::Object;
use crate::verify::chunk_index::{self, ChunkIndex};
use crate::verify::tree_blocks::{Parts, TreeBlocks, part_of};
use crate::verify::{TreeRange, Verifier};
use std::fs::File;
use std::io::{self, Read};
use std::iter;
use std::ops::Range;
use std::sync::Arc;
use tokio::task::JoinSet;
use tuff_store::{FileStore, ReadAt};
use tuff_verity::{Header, Root};

/// Bytes of the first request: the superblock, and the whole of a small image.
pub(crate) const HEAD: u64 = LONG_CHUNK;

/// Bytes of the request for the header of a hash tree. Unit: bytes.
const HEADER_READ: u64 = 4096;

/// Block size of the hash trees whose layout is guessed before their header is there. Unit: bytes.
const HASH_BLOCK: u32 = 4096;

/// Ranges with less than this between them become one request, and so does the rest of the object. Unit: bytes.
const GAP_MAX: u64 = 128 << 10;

/// Longest of the first requests, so that each can end before its deadline. Unit: bytes.
const REQUEST_MAX: u64 = 4 << 20;

/// First requests for an image.
pub(crate) struct FirstReads<'a> {
    /// Location of the image, for errors.
    pub(crate) place: &'a str,
    pub(crate) object: &'a Arc<dyn Object>,
    /// First bytes of the object, if they came with its identity.
    pub(crate) head: Vec<u8>,
    /// Chunk index that the reference names.
    pub(crate) index: Option<IndexPlace>,
    pub(crate) stated: Stated,
}

impl FirstReads<'_> {
    /// Reads ranges of the object at once, and returns them in order.
    fn read_all(&self, ranges: &[Range<u64>]) -> Result<Parts> {
        let mut requests = JoinSet::new();
        let runtime = runtime()?;
        let pieces = ranges.iter().flat_map(|range| {
            // Fits: 4 MiB.
            let starts = range.clone().step_by(REQUEST_MAX as usize);
            starts.map(|start| start..(start + REQUEST_MAX).min(range.end))
        });
        for piece in pieces {
            let object = Arc::clone(self.object);
            let request = async move { (piece.start, object.read(piece).await) };
            requests.spawn_on(request, runtime.handle());
        }
        let mut pieces = runtime.block_on(requests.join_all());
        pieces.sort_unstable_by_key(|(start, _)| *start);
        let mut parts = Parts::new();
        for (start, bytes) in pieces {
            let mut bytes = bytes?;
            match parts.last_mut() {
                Some((at, part)) if *at + part.len() as u64 == start => part.append(&mut bytes),
                _ => parts.push((start, bytes)),
            }
        }
        Ok(parts)
    }

    fn read(&self, start: u64, end: u64) -> Result<Vec<u8>> {
        let range = start..end;
        let parts = self.read_all(std::slice::from_ref(&range))?;
        Ok(parts.into_iter().flat_map(|(_, bytes)| bytes).collect())
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
                let mut head = vec![0; HEADER_READ as usize];
                data.read_exact_at(&mut head, 0).ok()?;
                let start = header_place(metadata(&head)?.1);
                let file = directory.writable_image_file(key).ok()?;
                let known =
                    Verifier::known(self.object, file, start, root, data, self.has_digest());
                known.map(Arc::new)
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
        let has_tree = root.is_some() && known.is_none();
        let index_range = index.as_ref().map(|place| place.start.min(size)..size);
        let mut parts = self.first_parts(size, has_tree, index_range.clone())?;
        let head = parts.first().map_or(&[][..], |(_, head)| head);
        let (meta, end) = metadata(head).unwrap_or((size, size));
        let is_there = |at: u64| part_of(&parts, at, 1).is_some();
        let has_metadata = root_inode(head).is_some_and(|at| at >= HEAD && is_there(at));
        if !has_metadata {
            let needed = metadata_range(meta, end, size);
            let tree = has_tree.then(|| guessed_tree(header_place(end), &needed, size));
            let ranges = [needed]
                .into_iter()
                .chain(tree.unwrap_or_default())
                .chain(index_range);
            parts.extend(self.read_all(&missing(ranges, &parts, size))?);
            parts.sort_unstable_by_key(|(at, _)| *at);
        }
        let parts = Arc::new(parts);
        let verifier = match (root, known, index) {
            (_, Some(known), _) => Some(known),
            (Some(root), None, _) => Some(self.tree(root, end, &parts, directory, key)?),
            (None, None, Some(place)) => self.chunk_index(&place, &parts, directory, key)?,
            (None, None, None) => None,
        };
        Ok(FirstBytes { verifier, parts })
    }

    /// First bytes, and what the manifest states: metadata, and hash blocks or the chunk index that verify both.
    fn first_parts(
        &mut self,
        size: u64,
        has_tree: bool,
        index: Option<Range<u64>>,
    ) -> Result<Parts> {
        let mut ranges: Vec<_> = iter::once(0..HEAD.min(size)).collect();
        if let Some(metadata) = self.stated_metadata(size) {
            if let Some(start) = self.stated.hash_offset.filter(|_| has_tree) {
                ranges.extend(guessed_tree(start, &metadata, size));
            }
            ranges.extend(index);
            ranges.push(metadata);
        }
        let known = match self.head.is_empty() {
            true => Parts::new(),
            false => vec![(0, std::mem::take(&mut self.head))],
        };
        let mut parts = self.read_all(&missing(ranges.into_iter(), &known, size))?;
        parts.extend(known);
        parts.sort_unstable_by_key(|(at, _)| *at);
        Ok(parts)
    }

    /// Whole chunks of the metadata that the manifest states. `None` for what cannot be metadata.
    fn stated_metadata(&self, size: u64) -> Option<Range<u64>> {
        let stated = self.stated.metadata.clone()?;
        let end = self.stated.hash_offset.unwrap_or(size).min(size);
        let is_possible = HEAD <= stated.start && stated.start < stated.end && stated.end <= end;
        let range = stated.start / LONG_CHUNK * LONG_CHUNK..stated.end;
        let whole = range.start..range.end.next_multiple_of(LONG_CHUNK).min(size);
        (is_possible && range.end - range.start <= STATED_MAX).then_some(whole)
    }

    /// Reads the chunk index of a blob, and stores it in the cache. `None` if it has another form than this reader verifies.
    fn chunk_index(
        &self,
        place: &IndexPlace,
        parts: &Parts,
        directory: &Directory,
        key: &str,
    ) -> Result<Option<Arc<Verifier>>> {
        let corrupt = |what: &str| Error::new(Kind::Corrupt, self.place, what);
        let size = self.object.identity().size;
        let len = usize::try_from(size - place.start.min(size)).unwrap_or(usize::MAX);
        let bytes = match part_of(parts, place.start, len) {
            Some(bytes) => bytes.to_vec(),
            None => self.read(place.start, size)?,
        };
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
        let _ = directory.store_chunk_index(key, &bytes);
        Ok(verifier.map(Arc::new))
    }

    /// Opens the hash tree after an image of `end` bytes. `parts`: parts of the object that were read already.
    fn tree(
        &self,
        root: Root,
        end: u64,
        parts: &Arc<Parts>,
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
        let len = (size - start).min(HEADER_READ);
        // Fits: at most 4096.
        let header = match part_of(parts, start, len as usize) {
            Some(header) => header.to_vec(),
            None => self.read(start, start + len)?,
        };
        TreeRange::new(&header, start, size).map_err(wrong)?;
        let mut first = Parts::clone(parts);
        first.push((start, header));
        let data = FirstData {
            parts: Arc::clone(parts),
            object: Arc::clone(self.object),
        };
        let file: Option<File> = directory.writable_image_file(key).ok();
        let blocks = TreeBlocks::new(Arc::clone(self.object), file, first);
        let verifier = Verifier::tree(blocks, start, root, Arc::new(data), self.has_digest());
        let verifier = verifier.map_err(|e| wrong(format!("hash tree: {e}")));
        verifier.map(Arc::new)
    }
}

/// Places of the header of a tree at `start`, and of the hash blocks that verify the first bytes and the metadata, if the tree
/// has blocks of the usual size.
fn guessed_tree(start: u64, metadata: &Range<u64>, size: u64) -> Vec<Range<u64>> {
    let header = start..start.saturating_add(HEADER_READ);
    let mut ranges: Vec<_> = iter::once(header).collect();
    if let Ok(header) = Header::new(start, HASH_BLOCK, Vec::new(), [0; 16]) {
        for data in [0..HEAD.min(start), metadata.clone()] {
            let data = data.start..data.end.min(start);
            if data.start < data.end && start < size {
                ranges.extend(tuff_verity::hash_blocks_of(&header, start, data));
            }
        }
    }
    ranges
}

/// Ranges that no part has, in few requests.
fn missing(ranges: impl Iterator<Item = Range<u64>>, parts: &Parts, size: u64) -> Vec<Range<u64>> {
    let is_missing = |range: &Range<u64>| {
        let len = usize::try_from(range.end - range.start).ok();
        len.is_none_or(|len| part_of(parts, range.start, len).is_none())
    };
    let clipped = ranges.map(|range| range.start..range.end.min(size));
    let mut ranges: Vec<_> = clipped
        .filter(|range| range.start < range.end)
        .filter(is_missing)
        .collect();
    ranges.sort_unstable_by_key(|range| range.start);
    let mut merged: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match merged.last_mut() {
            Some(last) if range.start <= last.end + GAP_MAX => {
                last.end = last.end.max(range.end);
            }
            _ => merged.push(range),
        }
    }
    // The last chunk is kept if it is whole.
    if let Some(last) = merged.last_mut().filter(|last| last.end + GAP_MAX >= size) {
        last.end = size;
    }
    merged
}

/// Bytes of the first reads, and what verifies the image.
pub(crate) struct FirstBytes {
    pub(crate) verifier: Option<Arc<Verifier>>,
    parts: Arc<Parts>,
}

impl FirstBytes {
    /// Stores the whole chunks in the cache that the verifier accepts.
    pub(crate) fn store(&self, directory: &Directory, cache: &ImageCache) {
        for (at, bytes) in self.parts.iter() {
            let chunk = cache.chunk_size();
            let first = at.next_multiple_of(chunk);
            let end = at + bytes.len() as u64;
            let end = match end >= cache.size() {
                true => cache.size(),
                false => end / chunk * chunk,
            };
            if first >= end {
                continue;
            }
            // Fits: both are in the part.
            let bytes = &bytes[(first - at) as usize..(end - at) as usize];
            // Bytes that do not match are left to the reads, which repeat the request and report what remains.
            let is_right = |verifier: &Arc<Verifier>| verifier.verify(first, bytes).is_ok();
            if !self.verifier.as_ref().is_none_or(is_right) {
                continue;
            }
            // A full disk does not keep readers from an image.
            let stored = cache.store(first / chunk, bytes);
            let _ = stored.and_then(|stored| directory.charge(stored, Some(cache)));
        }
    }
}

/// Object whose first bytes were read.
struct FirstData {
    parts: Arc<Parts>,
    object: Arc<dyn Object>,
}

impl ReadAt for FirstData {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let end = self.size().min(offset.saturating_add(buf.len() as u64));
        if offset >= end {
            return Ok(0);
        }
        // Fits: at most the length of the buffer.
        let buf = &mut buf[..(end - offset) as usize];
        match part_of(&self.parts, offset, buf.len()) {
            Some(known) => buf.copy_from_slice(known),
            None => {
                let bytes = runtime()?.block_on(self.object.read(offset..end))?;
                let n = bytes.len().min(buf.len());
                buf[..n].copy_from_slice(&bytes[..n]);
                return Ok(n);
            }
        }
        Ok(buf.len())
    }

    fn size(&self) -> u64 {
        self.object.identity().size
    }
}

/// Opens the chunk index in the cache.
fn cached_index(directory: &Directory, key: &str, place: &IndexPlace) -> Option<Arc<Verifier>> {
    let mut bytes = Vec::new();
    let file = directory.chunk_index(key).ok()?;
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
