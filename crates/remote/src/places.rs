//! Places of the parts of an image, from its superblock.

use crate::cache::LONG_CHUNK;
use std::ops::Range;
use tuff_format::superblock::{self, Superblock};

/// Alignment of the header of the hash tree, which follows the image. Unit: bytes.
const HEADER_ALIGN: u64 = 4096;

/// Longest metadata that is fetched before the first read. Unit: bytes.
const METADATA_MAX: u64 = 16 << 20;

/// Longest image that is read as a whole if its metadata begins beside the superblock. Unit: bytes.
const WHOLE_MAX: u64 = 1 << 20;

/// Longest metadata that a manifest states. Unit: bytes.
pub(crate) const STATED_MAX: u64 = 4 << 20;

/// Bytes before the metadata that are fetched with it: a share of its length, and at most this. Unit: bytes.
const DIRECTORIES_SHARE: u64 = 8;
const DIRECTORIES_MAX: u64 = 1 << 20;

/// Start of the metadata and end of the image, from the first bytes of the object. `None` if they are no image. Unit:
/// bytes.
pub(crate) fn metadata(head: &[u8]) -> Option<(u64, u64)> {
    // Fits: the offset is 1024.
    let sb = Superblock::decode(head.get(superblock::OFFSET as usize..)?).ok()?;
    let bits = sb.block_bits.get();
    let bytes = |blocks: u64| blocks.checked_mul(1 << bits);
    Some((bytes(sb.meta_blkaddr.0)?, bytes(sb.blocks)?))
}

/// Position of the inode of the root directory, from the first bytes of the object. `None` if it is in another place than the
/// metadata. Unit: bytes.
pub(crate) fn root_inode(head: &[u8]) -> Option<u64> {
    // Fits: the offset is 1024.
    let sb = Superblock::decode(head.get(superblock::OFFSET as usize..)?).ok()?;
    let nid = Some(sb.root)
        .filter(|nid| !nid.in_metabox())
        .or(sb.metabox)?;
    let (meta, _) = metadata(head)?;
    meta.checked_add(nid.0.checked_mul(32)?)
}

/// Position of the header of a tree after an image of `len` bytes. Unit: bytes.
pub(crate) fn header_place(len: u64) -> u64 {
    len.div_ceil(HEADER_ALIGN) * HEADER_ALIGN
}

/// Whole chunks with the metadata of an image of `end` bytes, from `meta` on. Empty if that is most of a large image, or if the
/// metadata begins beside the superblock: data follows it there. Small images are read as a whole.
pub(crate) fn metadata_range(meta: u64, end: u64, size: u64) -> Range<u64> {
    // `tuff build` puts directories of more than a block before the metadata.
    let end = end.min(size).max(meta.min(size));
    let meta = meta.min(size);
    if meta < LONG_CHUNK && end > WHOLE_MAX {
        return end..end;
    }
    let directories = ((end - meta) / DIRECTORIES_SHARE).min(DIRECTORIES_MAX);
    let from = meta.saturating_sub(directories) / LONG_CHUNK * LONG_CHUNK;
    match end - from <= METADATA_MAX {
        true => from.max(LONG_CHUNK).min(end)..end,
        false => end..end,
    }
}
