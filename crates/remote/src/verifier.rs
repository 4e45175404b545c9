//! Verification of chunks by the dm-verity tree of an image, or by the chunk index of its blob.

use crate::cache::CHUNK;
use crate::chunk_index::ChunkIndex;
use std::fs::File;
use std::io;
use std::sync::Arc;
use tuff_format::superblock::{self, Superblock};
use tuff_store::{FileStore, ReadAt, Window};
use tuff_verity::{HEADER_LEN, Header, Root, Verified};

/// Alignment of the header of the tree, which follows the image. Unit: bytes.
const HEADER_ALIGN: u64 = 4096;

/// Bytes before the tree in its file of the cache, which begin with its position in the object. Unit: bytes.
const TREE_FILE_HEAD: u64 = 4096;

/// Digests that chunks are compared with.
pub(crate) enum Verifier {
    Tree(Box<TreeVerifier>),
    /// Chunk index that a manifest names by its digest.
    Index(ChunkIndex),
}

/// Verified tree, and the store that holds it.
pub(crate) struct TreeVerifier {
    verified: Verified,
    /// End of the data that the tree covers. Unit: bytes.
    covered: u64,
    /// The tree at its position in the object.
    tree: Arc<dyn ReadAt>,
}

/// Position of a tree in its object, from its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TreePlace {
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

impl TreePlace {
    /// Place of the tree whose header is at `start` of an object of `size` bytes. `bytes` begin with the header.
    pub(crate) fn new(bytes: &[u8], start: u64, size: u64) -> Result<Self, String> {
        let header = bytes.first_chunk::<HEADER_LEN>();
        let header = header
            .map(Header::decode)
            .ok_or("no hash tree of dm-verity")?;
        let header = header.map_err(|e| e.to_string())?;
        let end = tuff_verity::tree_end(&header, None, start).map_err(|e| e.to_string())?;
        if end > size || header.data_len() > start {
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

/// Opens and verifies a hash tree in the cache.
pub(crate) fn cached_tree(file: File, root: Root) -> io::Result<Verifier> {
    let (tree, start) = tree_file(file)?;
    Verifier::tree(tree, start, root)
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
    /// Opens the tree that `tree` holds from its header on, and verifies all of it.
    pub(crate) fn tree(tree: Arc<dyn ReadAt>, start: u64, root: Root) -> io::Result<Self> {
        let tree: Arc<dyn ReadAt> = Arc::new(Shifted { inner: tree, start });
        // The data itself is never read through this value.
        let verified = Verified::open(Arc::clone(&tree), Arc::clone(&tree), start, root)?;
        verified.verify_tree()?;
        Ok(Self::Tree(Box::new(TreeVerifier {
            covered: verified.header().data_len(),
            tree,
            verified,
        })))
    }

    /// Parameters of the tree. `None` for a chunk index.
    pub(crate) fn header(&self) -> Option<&Header> {
        match self {
            Self::Tree(tree) => Some(tree.verified.header()),
            Self::Index(_) => None,
        }
    }

    /// End of the data that the tree covers. Unit: bytes.
    pub(crate) fn covered(&self) -> u64 {
        match self {
            Self::Tree(tree) => tree.covered,
            Self::Index(_) => 0,
        }
    }

    /// Verified digest of a block of the tree.
    pub(crate) fn digest(&self, block: u64) -> io::Result<Root> {
        match self {
            Self::Tree(tree) => tree.verified.digest(block),
            Self::Index(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Verifies bytes at `offset`, a multiple of the chunk size.
    pub(crate) fn verify(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        debug_assert!(offset.is_multiple_of(CHUNK));
        match self {
            Self::Tree(tree) => tree.verify(offset, bytes),
            Self::Index(index) => index.verify(offset, bytes),
        }
    }
}

impl TreeVerifier {
    /// Verifies data by the tree, and a part of the tree by the tree that was verified. The root hash covers neither the
    /// header of the tree nor what follows it.
    fn verify(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let left = self.covered.saturating_sub(offset).min(bytes.len() as u64);
        self.verified.verify(offset, &bytes[..left as usize])?; // fits: at most the length of `bytes`
        let tree = self.verified.hash_blocks();
        let start = tree.start.max(offset);
        let end = tree.end.min(offset + bytes.len() as u64);
        if start >= end {
            return Ok(());
        }
        // Fits: both are in `bytes`.
        let found = &bytes[(start - offset) as usize..(end - offset) as usize];
        let mut wanted = vec![0; found.len()];
        self.tree.read_exact_at(&mut wanted, start)?;
        if found == wanted {
            return Ok(());
        }
        let what = format!("the hash tree at byte {start} does not match the root hash");
        Err(io::Error::new(io::ErrorKind::InvalidData, what))
    }
}
