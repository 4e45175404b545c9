//! Blocks that an image shares with other images in the cache, found by the digests of their hash trees.
//!
//! Digests of another tree only say where to look. What is found is verified like bytes from a server, so that an evicted
//! or damaged block of another image is no more than a block that is not found.

use crate::cache::Directory;
use crate::verify::{Verifier, cached_digests};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use tuff_verity::Root;

/// Size of a block that is shared. Unit: bytes.
const BLOCK: u64 = 4096;

/// Number of blocks of other images that are known at most. They take 16 bytes each.
const KNOWN_MAX: usize = 1 << 20;

/// Number of other images whose files are open.
const IMAGES_MAX: usize = 64;

/// Number of blocks with the same start of a digest that are looked at.
const CANDIDATES_MAX: usize = 4;

/// Blocks of other images in the cache.
pub(crate) struct SharedBlocks {
    verifier: Arc<Verifier>,
    /// Data of the other images.
    images: Vec<File>,
    known: Vec<Known>,
}

/// Chunk that other images have.
pub(crate) struct SharedChunk {
    /// Bytes of the chunk, which were verified.
    pub(crate) bytes: Vec<u8>,
    /// Number of the image and position in it, if it has all of the chunk in one piece. Unit: bytes.
    pub(crate) place: Option<(usize, u64)>,
}

/// Block of another image.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Known {
    /// First 8 bytes of the digest.
    digest: u64,
    /// Number of the image.
    image: u32,
    /// Number of the block in it.
    block: u32,
}

impl Known {
    /// True if `next` is the block after this one.
    fn is_before(self, next: Self) -> bool {
        (next.image, next.block) == (self.image, self.block.saturating_add(1))
    }
}

fn start_of(digest: &Root) -> u64 {
    digest[..8]
        .iter()
        .fold(0, |n, byte| n << 8 | u64::from(*byte))
}

impl SharedBlocks {
    /// Reads the hash trees of the other images in a directory, those used last first. `None` if there are none with
    /// blocks and a salt like those of the image `key`.
    pub(crate) fn find(directory: &Directory, key: &str, verifier: &Arc<Verifier>) -> Option<Self> {
        let header = verifier.header()?;
        if u64::from(header.data_block) != BLOCK {
            return None;
        }
        let (mut images, mut known) = (Vec::new(), Vec::new());
        for other in directory.others(key) {
            if known.len() >= KNOWN_MAX || images.len() >= IMAGES_MAX {
                break;
            }
            let Ok(data) = directory.image_file(&other) else {
                continue;
            };
            let number = images.len() as u32; // fits: at most IMAGES_MAX
            let before = known.len();
            let found = cached_digests(&data, header, |block, digest| {
                if let (Ok(block), true) = (u32::try_from(block), known.len() < KNOWN_MAX) {
                    known.push(Known {
                        digest: start_of(digest),
                        image: number,
                        block,
                    });
                }
            });
            if found.is_err() {
                known.truncate(before);
            }
            if known.len() > before {
                images.push(data);
            }
        }
        known.sort_unstable();
        (!known.is_empty()).then(|| Self {
            verifier: Arc::clone(verifier),
            images,
            known,
        })
    }

    /// File with the data of an image.
    pub(crate) fn image(&self, number: usize) -> &File {
        &self.images[number]
    }

    /// Chunk, if other images have all of its blocks.
    pub(crate) fn chunk(&self, chunk: u64) -> Option<SharedChunk> {
        let len = self.verifier.chunk_size();
        let start = chunk * len;
        if start + len > self.verifier.covered() {
            return None;
        }
        let mut bytes = vec![0; len as usize]; // fits: at most 128 KiB
        let (mut first, mut last) = (None, None);
        let mut is_whole = true;
        let blocks = start / BLOCK..;
        for (block, buf) in blocks.zip(bytes.chunks_exact_mut(BLOCK as usize)) {
            let expected = start_of(&self.verifier.digest(block).ok()?);
            let found = self.block(expected, last)?;
            let image = &self.images[found.image as usize];
            image
                .read_exact_at(buf, u64::from(found.block) * BLOCK)
                .ok()?;
            is_whole &= last.is_none_or(|last: Known| last.is_before(found));
            first = first.or(Some(found));
            last = Some(found);
        }
        self.verifier.verify(start, &bytes).ok()?;
        let place = first.map(|first| (first.image as usize, u64::from(first.block) * BLOCK));
        Some(SharedChunk {
            bytes,
            place: place.filter(|_| is_whole),
        })
    }

    /// Block whose digest starts like this. The one that follows `last` is preferred.
    fn block(&self, digest: u64, last: Option<Known>) -> Option<Known> {
        let first = self.known.partition_point(|known| known.digest < digest);
        let found = self.known[first..].iter().take(CANDIDATES_MAX);
        let mut found = found.take_while(|known| known.digest == digest);
        let follows = |known: &&Known| last.is_some_and(|last| last.is_before(**known));
        let next = found.clone().find(follows);
        next.or_else(|| found.next()).copied()
    }
}
