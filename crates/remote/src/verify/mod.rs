//! Verification of chunks by the dm-verity tree of an image, or by the chunk index of its blob.

pub(crate) mod chunk_index;

use crate::cache::CHUNK;
use crate::verify::chunk_index::ChunkIndex;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use tuff_format::claim::Claim;
use tuff_format::superblock::{self, Superblock};
use tuff_store::{FileStore, ReadAt, Window};
use tuff_verity::{HEADER_LEN, Header, NotCovered, Root, TreePlace, Verified, covered};

/// Alignment of the header of the tree, which follows the image. Unit: bytes.
const HEADER_ALIGN: u64 = 4096;

/// Bytes before the tree in its file of the cache, which begin with its position in the object. Unit: bytes.
const TREE_FILE_HEAD: u64 = 4096;

/// Digests that chunks are compared with.
enum Digests {
    Tree(Box<TreeDigests>),
    /// Chunk index that a manifest names by its digest.
    Index(ChunkIndex),
}

/// Verified tree, and the store that holds it.
struct TreeDigests {
    verified: Verified,
    /// Position of the header in the object. Unit: bytes.
    start: u64,
    /// The tree at its position in the object.
    tree: Arc<dyn ReadAt>,
}

/// Verifier of the chunks of an object.
pub(crate) struct Verifier {
    digests: Digests,
    /// End of the bytes that the digests determine: data and tree. Unit: bytes.
    end: u64,
    /// True if the bytes after that are kept for the digest of the whole object, which is compared once all are there.
    has_rest: bool,
}

/// Position of a tree in its object, from its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TreeRange {
    /// Position of the header. Unit: bytes.
    pub(crate) start: u64,
    /// End of the tree, without parity. Unit: bytes.
    pub(crate) end: u64,
}

/// Start of the metadata and end of the image, from the first bytes of the object. `None` if they are no image. Unit:
/// bytes.
pub(crate) fn metadata(head: &[u8]) -> Option<(u64, u64)> {
    // Fits: the offset is 1024.
    let sb = Superblock::decode(head.get(superblock::OFFSET as usize..)?).ok()?;
    let bits = sb.block_bits.get();
    let bytes = |blocks: u64| blocks.checked_mul(1 << bits);
    Some((bytes(sb.meta_blkaddr.0)?, bytes(sb.blocks)?))
}

/// Position of the header of a tree after an image of `len` bytes. Unit: bytes.
pub(crate) fn header_place(len: u64) -> u64 {
    len.div_ceil(HEADER_ALIGN) * HEADER_ALIGN
}

impl TreeRange {
    /// Range of the tree whose header is at `start` of an object of `size` bytes. `bytes` begin with the header.
    pub(crate) fn new(bytes: &[u8], start: u64, size: u64) -> Result<Self, String> {
        let header = bytes.first_chunk::<HEADER_LEN>();
        let header = header
            .map(Header::decode)
            .ok_or("no hash tree of dm-verity")?;
        let header = header.map_err(|e| e.to_string())?;
        let end = tuff_verity::tree_end(&header, None, start).map_err(|e| e.to_string())?;
        // Bounds the tree before it is fetched. The claim is not known yet.
        covered(header.data_len(), 0, start).map_err(|e| e.to_string())?;
        if end > size {
            return Err("the hash tree does not fit the object".to_owned());
        }
        Ok(Self { start, end })
    }
}

/// Store with bytes of an object from `start` on, at their positions in the object.
struct Shifted {
    inner: Arc<dyn ReadAt>,
    start: u64,
}

impl ReadAt for Shifted {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        match offset.checked_sub(self.start) {
            Some(offset) => self.inner.read_at(buf, offset),
            None => Err(io::ErrorKind::InvalidInput.into()),
        }
    }

    fn size(&self) -> u64 {
        self.start + self.inner.size()
    }
}

/// Opens and verifies a hash tree in the cache. `data`: as for [`Verifier::tree`].
pub(crate) fn cached_tree(
    file: File,
    root: Root,
    data: Arc<dyn ReadAt>,
    has_rest: bool,
) -> io::Result<Verifier> {
    let (tree, start) = tree_file(file)?;
    Verifier::tree(tree, start, root, data, has_rest)
}

/// Calls `f` with the number and the digest of each block of a tree in the cache that hashes blocks as `like` does.
/// Nothing is verified.
pub(crate) fn cached_digests(
    file: File,
    like: &Header,
    f: impl FnMut(u64, &Root),
) -> io::Result<()> {
    let (tree, start) = tree_file(file)?;
    let tree = Shifted { inner: tree, start };
    let header = tuff_verity::read_header(&tree, start)?;
    if (header.data_block, &header.salt) != (like.data_block, &like.salt) {
        return Ok(());
    }
    tuff_verity::unverified_digests(&tree, start, f)
}

/// Tree in a file of the cache, from its header on, and its position in its object.
fn tree_file(file: File) -> io::Result<(Arc<dyn ReadAt>, u64)> {
    let store = FileStore::new(file)?;
    let mut start = [0; 8];
    store.read_exact_at(&mut start, 0)?;
    let tree = Window::from(store, TREE_FILE_HEAD);
    Ok((Arc::new(tree), u64::from_le_bytes(start)))
}

/// Start of a file of the cache with a tree whose header is at `start` of its object. The tree follows.
pub(crate) fn tree_file_head(start: u64) -> Vec<u8> {
    let mut head = vec![0; TREE_FILE_HEAD as usize];
    head[..8].copy_from_slice(&start.to_le_bytes());
    head
}

impl Verifier {
    /// Opens the tree that `tree` holds from its header on, and verifies all of it. It must cover what the image claims, whose
    /// superblock is read from `data` and verified.
    pub(crate) fn tree(
        tree: Arc<dyn ReadAt>,
        start: u64,
        root: Root,
        data: Arc<dyn ReadAt>,
        has_rest: bool,
    ) -> io::Result<Self> {
        let tree: Arc<dyn ReadAt> = Arc::new(Shifted { inner: tree, start });
        let place = TreePlace::appended(Arc::clone(&tree), start);
        let verified = Verified::open(data, place, root, |verified| claim(verified, start))?;
        verified.verify_tree()?;
        Ok(Self {
            end: verified.hash_blocks().end,
            digests: Digests::Tree(Box::new(TreeDigests {
                verified,
                start,
                tree,
            })),
            has_rest,
        })
    }

    /// Verifier of the first `end` bytes of a blob by its chunk index.
    ///
    /// # Errors
    /// The index does not cover these bytes.
    pub(crate) fn index(index: ChunkIndex, end: u64) -> Result<Self, NotCovered> {
        let range = covered(index.size(), end, end)?;
        Ok(Self {
            digests: Digests::Index(index),
            end: range.end,
            has_rest: true,
        })
    }

    /// Parameters of the tree. `None` for a chunk index.
    pub(crate) fn header(&self) -> Option<&Header> {
        match &self.digests {
            Digests::Tree(tree) => Some(tree.verified.header()),
            Digests::Index(_) => None,
        }
    }

    /// End of the data that a tree covers, which is all that readers of the image see. Unit: bytes.
    pub(crate) fn covered(&self) -> u64 {
        match &self.digests {
            Digests::Tree(tree) => tree.verified.covered_range().end,
            Digests::Index(_) => 0,
        }
    }

    /// End of the bytes that the digests determine: data and tree. Unit: bytes.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// Number of bytes of an object of `size` bytes that are kept. Unit: bytes.
    pub(crate) fn kept(&self, size: u64) -> u64 {
        match self.has_rest {
            true => size,
            false => self.end,
        }
    }

    /// Verified digest of a block of the tree.
    pub(crate) fn digest(&self, block: u64) -> io::Result<Root> {
        match &self.digests {
            Digests::Tree(tree) => tree.verified.digest(block),
            Digests::Index(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Verifies bytes at `offset`, a multiple of the chunk size.
    ///
    /// # Errors
    /// `InvalidData` for bytes that do not match, and for those that no digest covers.
    pub(crate) fn verify(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        debug_assert!(offset.is_multiple_of(CHUNK));
        // Fits: at most the length of `bytes`.
        let len = self.end.saturating_sub(offset).min(bytes.len() as u64) as usize;
        let (bytes, rest) = bytes.split_at(len);
        if !rest.is_empty() && !self.has_rest {
            let what = format!("nothing verifies the bytes from {} on", self.end);
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        match &self.digests {
            Digests::Tree(tree) => tree.verify(offset, bytes),
            Digests::Index(index) => index.verify(offset, bytes),
        }
    }
}

/// Number of bytes that the image claims before its tree, whose header is at `start`. Other data claims all of them.
fn claim(verified: &Verified, start: u64) -> io::Result<u64> {
    let mut read = |at: u64, buf: &mut [u8]| verified.read_exact_at(buf, at);
    match Claim::read(&mut read) {
        Ok(claim) => Ok(claim.map_or(start, |claim| claim.up_to(start))),
        // The superblock, or what it refers to, is after the bytes with digests.
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Ok(start),
        Err(e) => Err(e),
    }
}

impl TreeDigests {
    /// Verifies data by the tree, and a part of the tree by the tree that was verified. The root hash determines all bytes up to
    /// the end of the tree: zeros are between them, and the header is the one that the tree was opened with.
    fn verify(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let part = |range: Range<u64>| {
            let (start, end) = (
                range.start.max(offset),
                range.end.min(offset + bytes.len() as u64),
            );
            // Fits: both are in `bytes`.
            (start < end).then(|| {
                (
                    start,
                    &bytes[(start - offset) as usize..(end - offset) as usize],
                )
            })
        };
        let different = |at: u64| {
            let what = format!("the hash tree at byte {at} does not match the root hash");
            io::Error::new(io::ErrorKind::InvalidData, what)
        };
        let data = self.verified.covered_range();
        if let Some((at, found)) = part(data.clone()) {
            self.verified.verify(at, found)?;
        }
        let header = self.verified.header().encode();
        let header_end = self.start + header.len() as u64;
        let hashes = self.verified.hash_blocks();
        if let Some((at, found)) = part(self.start..header_end) {
            // Fits: in the header.
            let skip = (at - self.start) as usize;
            if found != &header[skip..skip + found.len()] {
                return Err(different(at));
            }
        }
        for padding in [data.end..self.start, header_end..hashes.start] {
            if let Some((at, found)) = part(padding)
                && found.iter().any(|byte| *byte != 0)
            {
                return Err(different(at));
            }
        }
        let Some((at, found)) = part(hashes) else {
            return Ok(());
        };
        let mut expected = vec![0; found.len()];
        self.tree.read_exact_at(&mut expected, at)?;
        match found == expected {
            true => Ok(()),
            false => Err(different(at)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_that_covers_less_or_more_than_its_image_is_refused() {
        let chunk = vec![7; CHUNK as usize];
        let mut index = ChunkIndex::new();
        index.push(&chunk);
        index.push(&chunk[..4096]);
        let size = CHUNK + 4096;
        let of = |end| Verifier::index(index.clone(), end).map(|verifier| verifier.end());
        assert_eq!(of(size), Ok(size));
        let (covered, claim) = (size, size + 1);
        assert_eq!(of(claim), Err(NotCovered::Short { covered, claim }));
        let end = size - 1;
        assert_eq!(of(end), Err(NotCovered::Long { covered, end }));
    }
}
