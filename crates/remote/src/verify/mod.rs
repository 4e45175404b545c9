//! Verification of chunks by the dm-verity tree of an image, or by the chunk index of its blob.

pub(crate) mod chunk_index;
pub(crate) mod tree_blocks;

use crate::cache::{CHUNK, LONG_CHUNK};
use crate::error::{Error, Kind, Result};
use crate::places::{header_place, metadata};
use crate::source::Object;
use crate::verify::chunk_index::ChunkIndex;
use crate::verify::tree_blocks::{Parts, TreeBlocks};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use tuff_format::claim::Claim;
use tuff_store::{FileStore, ReadAt};
use tuff_verity::{HEADER_LEN, Header, NotCovered, Root, TreePlace, Verified, covered};

/// Number of times that bytes which do not match the root hash are fetched.
pub(crate) const VERIFY_ATTEMPTS: u32 = 3;

/// First bytes of an image, with its superblock. Unit: bytes.
const HEAD_LEN: usize = 4096;

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
    blocks: Arc<TreeBlocks>,
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

impl TreeRange {
    /// Range of the tree whose header is at `start` of an object of `size` bytes. `bytes` begin with the header.
    pub(crate) fn new(bytes: &[u8], start: u64, size: u64) -> std::result::Result<Self, String> {
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

/// Calls `f` with the number and the digest of each block whose digest is in the cache. `image`: file of an image in the cache,
/// with a tree that hashes blocks as `like` does. Nothing is verified.
pub(crate) fn cached_digests(
    image: &File,
    like: &Header,
    mut f: impl FnMut(u64, &Root),
) -> io::Result<()> {
    let image = FileStore::new(image.try_clone()?)?;
    let mut head = vec![0; HEAD_LEN];
    image.read_exact_at(&mut head, 0)?;
    let absent = || io::Error::from(io::ErrorKind::NotFound);
    let (_, end) = metadata(&head).ok_or_else(absent)?;
    let start = header_place(end);
    let header = tuff_verity::read_header(&image, start)?;
    if (header.data_block, &header.salt) != (like.data_block, &like.salt) {
        return Ok(());
    }
    tuff_verity::unverified_digests(&image, start, |block, digest| {
        if *digest != Root::default() {
            f(block, digest);
        }
    })
}

impl Verifier {
    /// Opens the tree whose header is at `start` of an object. It must cover what the image claims, whose superblock is read
    /// from `data` and verified. The other hash blocks are verified when they are used.
    pub(crate) fn tree(
        blocks: TreeBlocks,
        start: u64,
        root: Root,
        data: Arc<dyn ReadAt>,
        has_rest: bool,
    ) -> io::Result<Self> {
        let blocks = Arc::new(blocks);
        let place = TreePlace::appended(Arc::<TreeBlocks>::clone(&blocks), start);
        let verified = Verified::open(data, place, root, |verified| claim(verified, start))?;
        let tree = TreeDigests {
            verified,
            start,
            blocks,
        };
        tree.keep_first()?;
        Ok(Self {
            end: tree.verified.hash_blocks().end,
            digests: Digests::Tree(Box::new(tree)),
            has_rest,
        })
    }

    /// Verifier whose header and first hash blocks are in the cache. `data`: bytes of the image there.
    pub(crate) fn known(
        object: &Arc<dyn Object>,
        file: File,
        start: u64,
        root: Root,
        data: FileStore,
        has_rest: bool,
    ) -> Option<Self> {
        let blocks = TreeBlocks::new(Arc::clone(object), Some(file), Parts::new());
        let mut header = [0; HEADER_LEN];
        // Nothing is fetched for an image that may be another one.
        if !blocks.read_present(&mut header, start) {
            return None;
        }
        Self::tree(blocks, start, root, Arc::new(data), has_rest).ok()
    }

    /// Fetches the digests of some bytes, so that [`verify`](Self::verify) waits for no answer.
    ///
    /// # Errors
    /// Errors of the requests, and `Corrupt` for hash blocks that do not match the root hash.
    pub(crate) async fn prepare(&self, range: Range<u64>, place: &str) -> Result<()> {
        match &self.digests {
            Digests::Tree(tree) => tree.prepare(range, place).await,
            Digests::Index(_) => Ok(()),
        }
    }

    /// Verifier of the first `end` bytes of a blob by its chunk index.
    ///
    /// # Errors
    /// The index does not cover these bytes.
    pub(crate) fn index(index: ChunkIndex, end: u64) -> std::result::Result<Self, NotCovered> {
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

    /// Length of the chunks that it verifies, each on its own. Unit: bytes.
    pub(crate) fn chunk_size(&self) -> u64 {
        match &self.digests {
            Digests::Tree(tree) if u64::from(tree.verified.header().data_block) <= CHUNK => CHUNK,
            _ => LONG_CHUNK,
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
        debug_assert!(offset.is_multiple_of(self.chunk_size()));
        // Fits: at most the length of `bytes`.
        let len = self.end.saturating_sub(offset).min(bytes.len() as u64) as usize;
        let (bytes, rest) = bytes.split_at(len);
        if !rest.is_empty() && !self.has_rest {
            let what = format!("nothing verifies the bytes from {} on", self.end);
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        match &self.digests {
            Digests::Tree(tree) => tree.verify(offset, bytes).inspect_err(|e| {
                if e.kind() == io::ErrorKind::InvalidData {
                    tree.forget_damaged(offset..offset + bytes.len() as u64);
                }
            }),
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
        self.verified.verify_hash_blocks(at, found)?;
        // Blocks that are not kept are fetched again.
        let _ = self.blocks.put(at, found, self.block_len());
        Ok(())
    }

    /// Length of a hash block. Unit: bytes.
    fn block_len(&self) -> usize {
        self.verified.header().hash_block as usize // fits: at most 64 KiB
    }

    /// Keeps the hash blocks that came with the first bytes of the object, which must match.
    fn keep_first(&self) -> io::Result<()> {
        let size = self.block_len();
        let all = self.verified.hash_blocks();
        for (at, bytes) in self.blocks.first().iter() {
            let end = (at + bytes.len() as u64).min(all.end) / size as u64 * size as u64;
            let start = all.start.max(at.next_multiple_of(size as u64));
            if start < end {
                // Fits: both are in the part.
                let blocks = &bytes[(start - at) as usize..(end - at) as usize];
                self.verified.verify_hash_blocks(start, blocks)?;
                self.blocks.put(start, blocks, size)?;
            }
        }
        // The next process finds the header, if there is a file.
        let header = self.verified.header().encode();
        let _ = self.blocks.put(self.start, &header, header.len());
        self.blocks.drop_first();
        Ok(())
    }

    /// Positions of each level, from the top down. Unit: bytes.
    fn levels(&self) -> Vec<Range<u64>> {
        self.verified.hash_blocks_of(0..u64::MAX)
    }

    async fn prepare(&self, range: Range<u64>, place: &str) -> Result<()> {
        let end = range.end.min(self.verified.covered_range().end);
        if range.start >= end {
            return Ok(());
        }
        let size = self.block_len() as u64;
        let path = self.verified.hash_blocks_of(range.start..end);
        let levels = self.levels();
        for (path, level) in path.into_iter().zip(&levels) {
            for run in self.blocks.absent(path, level, size) {
                self.fetch(run, place).await?;
            }
        }
        Ok(())
    }

    /// Fetches a run of hash blocks, unless another task does. Those above it are there.
    async fn fetch(&self, run: Range<u64>, place: &str) -> Result<()> {
        let lock = self.blocks.fetching(&run);
        let result = {
            let _one_task = lock.lock().await;
            match self
                .blocks
                .absent(run.clone(), &run, self.block_len() as u64)
                .is_empty()
            {
                true => Ok(()),
                false => self.fetch_alone(&run, place).await,
            }
        };
        self.blocks.fetched(&run);
        result
    }

    async fn fetch_alone(&self, run: &Range<u64>, place: &str) -> Result<()> {
        let mut mismatch = String::new();
        for _ in 0..VERIFY_ATTEMPTS {
            let bytes = self.blocks.request(run.clone()).await?;
            match self.verified.verify_hash_blocks(run.start, &bytes) {
                Ok(()) => return self.blocks.put(run.start, &bytes, self.block_len()),
                Err(e) => mismatch = e.to_string(),
            }
        }
        let what = format_args!("hash tree: {mismatch}, fetched up to {VERIFY_ATTEMPTS} times");
        Err(Error::new(Kind::Corrupt, place, what))
    }

    /// Forgets damaged hash blocks in the cache, so that they are fetched again.
    fn forget_damaged(&self, range: Range<u64>) {
        let block = u64::from(self.verified.header().data_block);
        let end = range.end.min(self.verified.covered_range().end);
        let first = range.start / block;
        for number in first..end.div_ceil(block).max(first) {
            if self.verified.digest(number).is_err() {
                let data = number * block..(number + 1) * block;
                for path in self.verified.hash_blocks_of(data) {
                    self.blocks.forget(path, self.block_len());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_that_covers_less_or_more_than_its_image_is_refused() {
        let chunk = vec![7; LONG_CHUNK as usize];
        let mut index = ChunkIndex::new();
        index.push(&chunk);
        index.push(&chunk[..4096]);
        let size = LONG_CHUNK + 4096;
        let of = |end| Verifier::index(index.clone(), end).map(|verifier| verifier.end());
        assert_eq!(of(size), Ok(size));
        let (covered, claim) = (size, size + 1);
        assert_eq!(of(claim), Err(NotCovered::Short { covered, claim }));
        let end = size - 1;
        assert_eq!(of(end), Err(NotCovered::Long { covered, end }));
    }
}
