//! Blob of a layer: the image with its hash tree, then the chunk index.

use super::options::{LayerImage, LayerTree, PushedLayer};
use super::watch::Watch;
use crate::cache::LONG_CHUNK;
use crate::error::{Kind, Result};
use crate::places::{STATED_MAX, metadata, metadata_range};
use crate::registry::digest;
use crate::verify::chunk_index::ChunkIndex;
use sha2::{Digest, Sha256};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use tuff_store::{MemStore, ReadAt};

/// Bytes that are read at once: several chunks. Unit: bytes.
const READ: u64 = 8 * LONG_CHUNK;

/// Blob with its digest.
pub(crate) struct Blob {
    pub(crate) store: Arc<dyn ReadAt>,
    pub(crate) digest: String,
    /// Size of the blob. Unit: bytes.
    pub(crate) size: u64,
    pub(crate) tree: Option<LayerTree>,
    pub(crate) index: Option<IndexAnnotation>,
    /// Metadata that a start reads first. Unit: bytes.
    pub(crate) metadata: Option<Range<u64>>,
    /// True for a device of the next blob that is none.
    pub(crate) is_device: bool,
    /// False for plain bytes.
    pub(crate) is_image: bool,
}

/// Chunk index as a manifest states it.
pub(crate) struct IndexAnnotation {
    /// Position of the index, which ends with the blob. Unit: bytes.
    pub(crate) start: u64,
    pub(crate) digest: String,
}

impl Blob {
    /// Reads an image and computes its digests. `has_index`: a chunk index follows it.
    fn measure(layer: &LayerImage, has_index: bool, watch: &Watch<'_>) -> Result<Self> {
        let size = layer.store.size();
        let failed = |e: io::Error| {
            watch.error(
                Kind::Unavailable,
                format_args!("cannot read the image: {e}"),
            )
        };
        let mut whole = Sha256::new();
        let mut index = ChunkIndex::new();
        let mut at = 0;
        while at < size {
            watch.step("hash", at, size)?;
            let mut bytes = vec![0; READ.min(size - at) as usize]; // fits: at most READ
            layer.store.read_exact_at(&mut bytes, at).map_err(failed)?;
            whole.update(&bytes);
            if has_index {
                let chunks = bytes.chunks(LONG_CHUNK as usize); // fits: small
                chunks.for_each(|chunk| index.push(chunk));
            }
            at += bytes.len() as u64;
        }
        let tree = layer.tree.clone();
        let metadata = stated_metadata(layer).map_err(failed)?;
        if !has_index {
            return Ok(Self {
                store: Arc::clone(&layer.store),
                digest: format!("sha256:{}", hex::encode(whole.finalize())),
                size,
                tree,
                index: None,
                metadata,
                is_device: false,
                is_image: layer.is_image,
            });
        }
        let tail = index.encode();
        whole.update(&tail);
        let annotation = IndexAnnotation {
            start: size,
            digest: digest(&tail),
        };
        let store = Joined {
            first: Arc::clone(&layer.store),
            second: MemStore::new(tail),
        };
        Ok(Self {
            size: store.size(),
            store: Arc::new(store),
            digest: format!("sha256:{}", hex::encode(whole.finalize())),
            tree,
            index: Some(annotation),
            metadata,
            is_device: false,
            is_image: layer.is_image,
        })
    }

    /// Blobs of the devices of a layer, then that of its image.
    pub(crate) fn measure_all(
        layer: &LayerImage,
        has_index: bool,
        watch: &Watch<'_>,
    ) -> Result<Vec<Self>> {
        let mut blobs = Vec::new();
        for device in &layer.devices {
            blobs.push(Self {
                is_device: true,
                ..Self::measure(device, has_index, watch)?
            });
        }
        blobs.push(Self::measure(layer, has_index, watch)?);
        Ok(blobs)
    }

    /// Result of the upload of this blob.
    pub(crate) fn pushed(&self, was_present: bool) -> PushedLayer {
        PushedLayer {
            digest: self.digest.clone(),
            size: self.size,
            root_hash: self.tree.as_ref().map(|tree| tree.root),
            is_device: self.is_device,
            was_present,
        }
    }

    /// Blob of a few bytes.
    pub(crate) fn small(bytes: Vec<u8>) -> Self {
        Self {
            digest: digest(&bytes),
            size: bytes.len() as u64,
            store: Arc::new(MemStore::new(bytes)),
            tree: None,
            index: None,
            metadata: None,
            is_device: false,
            is_image: true,
        }
    }
}

/// Metadata of an image that a start reads first, if there is a hash tree or chunk index, and if it is not long.
fn stated_metadata(layer: &LayerImage) -> io::Result<Option<Range<u64>>> {
    let mut head = vec![0; LONG_CHUNK.min(layer.store.size()) as usize]; // fits: small
    layer.store.read_exact_at(&mut head, 0)?;
    let Some((meta, end)) = metadata(&head).filter(|_| layer.is_image) else {
        return Ok(None);
    };
    let all = metadata_range(meta, end, layer.store.size());
    let range = layer.start_metadata.clone().unwrap_or(all);
    let is_stated =
        LONG_CHUNK <= range.start && !range.is_empty() && range.end - range.start <= STATED_MAX;
    Ok(is_stated.then_some(range))
}

/// Two stores, one after the other.
struct Joined {
    first: Arc<dyn ReadAt>,
    second: MemStore,
}

impl ReadAt for Joined {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let first = self.first.size();
        if offset >= first {
            return self.second.read_at(buf, offset - first);
        }
        let left = usize::try_from(first - offset).unwrap_or(usize::MAX);
        let len = buf.len().min(left);
        self.first.read_at(&mut buf[..len], offset)
    }

    fn size(&self) -> u64 {
        self.first.size() + self.second.size()
    }
}
