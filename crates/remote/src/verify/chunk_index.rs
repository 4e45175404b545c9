//! Chunk index of the EROFS image specification: a digest of each chunk of a layer, after the image in its blob.

use crate::cache::LONG_CHUNK;
use sha2::{Digest, Sha256};
use std::io;

const MAGIC: [u8; 4] = [0xcd, 0xe4, 0xec, 0x67];
const VERSION: u8 = 1;
/// Chunks are parts of the blob as they are.
const RAW: u8 = 0;
/// Family of the digests.
const SHA2: u8 = 1;
const DIGEST_LEN: usize = 32;
const HEADER_LEN: usize = 32;
/// Offset in the blob, offset in the image, digest.
const ENTRY_LEN: usize = 16 + DIGEST_LEN;

/// Longest index: that of an image of 64 GiB. Unit: bytes.
pub(crate) const LEN_MAX: u64 = (24 << 20) + HEADER_LEN as u64;

/// Digests of the chunks of an image, in chunks of the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ChunkIndex {
    /// Size of the image with its hash tree. Unit: bytes.
    size: u64,
    digests: Vec<[u8; DIGEST_LEN]>,
}

impl ChunkIndex {
    /// Index without chunks, to which [`push`](Self::push) adds.
    pub(crate) fn new() -> Self {
        Self {
            size: 0,
            digests: Vec::new(),
        }
    }

    /// Number of bytes that the index covers: the image with its hash tree.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Adds the next chunk. Only the last one may be short.
    pub(crate) fn push(&mut self, chunk: &[u8]) {
        debug_assert!(self.size.is_multiple_of(LONG_CHUNK) && chunk.len() as u64 <= LONG_CHUNK);
        self.size += chunk.len() as u64;
        self.digests.push(Sha256::digest(chunk).into());
    }

    /// Bytes of the index.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER_LEN + self.digests.len() * ENTRY_LEN);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&[VERSION, RAW, 0, 0]);
        out.extend_from_slice(&self.size.to_le_bytes());
        out.extend_from_slice(&(self.digests.len() as u32).to_le_bytes()); // fits: 512 TiB
        out.extend_from_slice(&[SHA2, DIGEST_LEN as u8]);
        out.resize(HEADER_LEN, 0);
        for (digest, number) in self.digests.iter().zip(0..) {
            let at: u64 = number * LONG_CHUNK;
            // Both offsets are the same, because chunks are raw.
            out.extend_from_slice(&at.to_le_bytes());
            out.extend_from_slice(&at.to_le_bytes());
            out.extend_from_slice(digest);
        }
        out
    }

    /// Parses an index. `None` for one with other chunks or digests than this reader verifies.
    ///
    /// # Errors
    /// One sentence about an index that is damaged.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Option<Self>, &'static str> {
        let header: &[u8; HEADER_LEN] = bytes.first_chunk().ok_or("the chunk index is cut off")?;
        if header[..4] != MAGIC {
            return Err("the chunk index has no magic number");
        }
        let [version, compression, flags_low, flags_high] =
            [header[4], header[5], header[6], header[7]];
        let is_known =
            version == VERSION && compression == RAW && flags_low == 0 && flags_high == 0;
        let has_digests = header[20] == SHA2 && usize::from(header[21]) == DIGEST_LEN;
        if !is_known || !has_digests || header[22..].iter().any(|b| *b != 0) {
            return Ok(None);
        }
        let number = |at: usize| {
            let bytes = header[at..at + 8].try_into().unwrap_or_default();
            u64::from_le_bytes(bytes)
        };
        let size = number(8);
        let count = number(16) & u64::from(u32::MAX);
        let entries = &bytes[HEADER_LEN..];
        if entries.len() as u64 != count * ENTRY_LEN as u64 {
            return Err("the chunk index has another length than its header states");
        }
        if count != size.div_ceil(LONG_CHUNK) {
            return Ok(None);
        }
        let mut digests = Vec::with_capacity(entries.len() / ENTRY_LEN);
        for (entry, number) in entries.chunks_exact(ENTRY_LEN).zip(0..) {
            let at: u64 = number * LONG_CHUNK;
            let offset = at.to_le_bytes();
            if entry[..8] != offset || entry[8..16] != offset {
                return Ok(None);
            }
            digests.push(entry[16..].try_into().unwrap_or_default());
        }
        Ok(Some(Self { size, digests }))
    }

    /// Verifies bytes at `offset`, a multiple of the chunk size: whole chunks, or the end of the image. Bytes after the
    /// image are not looked at.
    ///
    /// # Errors
    /// `InvalidData` with the position of a chunk that does not match.
    pub(crate) fn verify(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let left = self.size.saturating_sub(offset).min(bytes.len() as u64);
        let chunks = bytes[..left as usize].chunks(LONG_CHUNK as usize); // fits: at most the length of `bytes`
        for (chunk, number) in chunks.zip(offset / LONG_CHUNK..) {
            let expected = self.digests.get(number as usize); // fits: the index is in memory
            if expected != Some(&Sha256::digest(chunk).into()) {
                let what = format!(
                    "the chunk at byte {} does not match the chunk index",
                    number * LONG_CHUNK
                );
                return Err(io::Error::new(io::ErrorKind::InvalidData, what));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image() -> Vec<u8> {
        (0..LONG_CHUNK * 2 + 4096).map(|n| (n / 7) as u8).collect()
    }

    fn index(image: &[u8]) -> ChunkIndex {
        let mut index = ChunkIndex::new();
        image
            .chunks(LONG_CHUNK as usize)
            .for_each(|chunk| index.push(chunk));
        index
    }

    #[test]
    fn an_index_has_the_layout_of_the_specification() {
        let image = image();
        let bytes = index(&image).encode();
        assert_eq!(bytes.len(), 32 + 3 * 48);
        assert_eq!(bytes[..8], [0xcd, 0xe4, 0xec, 0x67, 1, 0, 0, 0]);
        assert_eq!(bytes[8..16], (image.len() as u64).to_le_bytes());
        assert_eq!(bytes[16..22], [3, 0, 0, 0, 1, 32]);
        assert_eq!(bytes[22..32], [0; 10]);
        let second = &bytes[32 + 48..32 + 96];
        assert_eq!(second[..8], LONG_CHUNK.to_le_bytes());
        assert_eq!(second[8..16], LONG_CHUNK.to_le_bytes());
        let chunk = &image[LONG_CHUNK as usize..2 * LONG_CHUNK as usize];
        assert_eq!(second[16..], Sha256::digest(chunk)[..]);
        assert_eq!(ChunkIndex::decode(&bytes), Ok(Some(index(&image))));
    }

    #[test]
    fn a_changed_byte_of_a_chunk_is_found() {
        let mut image = image();
        let index = index(&image);
        index.verify(0, &image).unwrap();
        index
            .verify(LONG_CHUNK, &image[LONG_CHUNK as usize..])
            .unwrap();
        // The index itself follows the image in the last chunk.
        let end = [&image[2 * LONG_CHUNK as usize..], &[9; 80]].concat();
        index.verify(2 * LONG_CHUNK, &end).unwrap();
        image[LONG_CHUNK as usize + 5] ^= 1;
        let e = index.verify(0, &image).unwrap_err();
        assert!(e.to_string().contains("at byte 131072"), "{e}");
    }

    #[test]
    fn damaged_and_unknown_indexes_are_told_apart() {
        let bytes = index(&image()).encode();
        assert!(ChunkIndex::decode(&bytes[..31]).is_err());
        assert!(ChunkIndex::decode(&bytes[..bytes.len() - 1]).is_err());
        let changed = |at: usize| {
            let mut bytes = bytes.clone();
            bytes[at] ^= 1;
            ChunkIndex::decode(&bytes)
        };
        assert!(changed(0).is_err());
        // Version, compression, flags, family, reserved bytes and a start of a chunk.
        for at in [4, 5, 6, 20, 30, 32 + 48] {
            assert_eq!(changed(at), Ok(None), "{at}");
        }
    }
}
