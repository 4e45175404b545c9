//! Verification of chunks by the dm-verity tree of an image.

use crate::cache::CHUNK;
use std::io;
use std::sync::Arc;
use tuff_format::superblock::{self, Superblock};
use tuff_store::ReadAt;
use tuff_verity::{HEADER_LEN, Header, Root, Verified};

/// Alignment of the header of the tree, which follows the image. Unit: bytes.
const HEADER_ALIGN: u64 = 4096;

/// Verified tree, and the store that holds it.
pub(crate) struct Verifier {
    verified: Verified,
    /// End of the data that the tree covers. Unit: bytes.
    covered: u64,
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

impl Verifier {
    /// Opens the tree that `tree` holds from its header on, and verifies all of it.
    pub(crate) fn new(tree: Arc<dyn ReadAt>, start: u64, root: Root) -> io::Result<Self> {
        let tree: Arc<dyn ReadAt> = Arc::new(Shifted { inner: tree, start });
        // The data itself is never read through this value.
        let verified = Verified::open(Arc::clone(&tree), tree, start, root)?;
        verified.verify_tree()?;
        Ok(Self {
            covered: verified.header().data_len(),
            verified,
        })
    }

    /// Verifies bytes at `offset`, a multiple of the chunk size. Bytes after the covered data are not looked at.
    pub(crate) fn verify(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        debug_assert!(offset.is_multiple_of(CHUNK));
        let left = self.covered.saturating_sub(offset).min(bytes.len() as u64);
        self.verified.verify(offset, &bytes[..left as usize]) // fits: at most the length of `bytes`
    }
}
