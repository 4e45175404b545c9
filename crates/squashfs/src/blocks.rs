//! Blocks of an image: bounds, decoding and caches.

use crate::budget::Budget;
use crate::cache::Cache;
use crate::compressor::{Compressor, Decompressor};
use crate::error::{Error, Result};
use crate::superblock::Superblock;
use std::sync::{Arc, Mutex, PoisonError};
use tuff_store::ReadAt;

/// Content of a block of metadata. Unit: bytes.
pub(crate) const METADATA_LEN: usize = 8192;

/// Bit of the header of a block of metadata that is not compressed.
const METADATA_PLAIN: u16 = 1 << 15;

/// Bit of the stored size of a block of data that is not compressed.
const DATA_PLAIN: u32 = 1 << 24;

/// Blocks of metadata that are cached: 2 MiB.
const METADATA_CACHED: usize = 256;

/// Bytes of decoded data that are cached.
const DATA_CACHED: usize = 16 << 20;

/// Bytes that may be decoded for each byte of an image, and for one of 1 MiB. Data may be referred to by many files, and is
/// decoded again if it is read again.
const DECODED_PER_BYTE: u64 = 8192;

/// Names, targets of links, attributes and data runs, in bytes of memory for each byte of an image, and at least.
const METADATA_PER_BYTE: u64 = 128;
const METADATA_MIN: u64 = 16 << 20;

/// Sizes of blocks of data that are read for each byte of an image, and at least: those of a sparse file of 2 TiB.
const SIZES_PER_BYTE: u64 = 64;
const SIZES_MIN: u64 = 1 << 24;

/// Decoded block of metadata, and where the next one is.
pub(crate) struct MetadataBlock {
    pub(crate) bytes: Vec<u8>,
    /// Position of the block behind it.
    pub(crate) next: u64,
}

/// Stored size of a block of data, as a file or a fragment states it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StoredSize {
    /// Bytes in the image. 0 for a hole.
    pub(crate) len: u32,
    is_plain: bool,
}

/// Reader of the blocks of an image.
pub(crate) struct BlockReader {
    store: Arc<dyn ReadAt>,
    compressor: Compressor,
    block_size: u32,
    bytes_used: u64,
    /// Contexts of threads that do not decode at the moment.
    contexts: Mutex<Vec<Context>>,
    metadata: Cache<MetadataBlock>,
    data: Cache<Vec<u8>>,
    decoded: Budget,
    /// Memory for what describes files.
    pub(crate) metadata_budget: Budget,
    /// Sizes of blocks that are read.
    pub(crate) block_budget: Budget,
}

/// Decoder and its input.
struct Context {
    decompressor: Decompressor,
    input: Vec<u8>,
}

impl BlockReader {
    pub(crate) fn new(store: Arc<dyn ReadAt>, superblock: &Superblock) -> Self {
        let len = superblock.bytes_used;
        let block_size = superblock.block_size;
        Self {
            store,
            compressor: superblock.compressor,
            block_size,
            bytes_used: len,
            contexts: Mutex::default(),
            metadata: Cache::new(METADATA_CACHED),
            // Fits: a block is at most 1 MiB.
            data: Cache::new(DATA_CACHED / block_size as usize),
            decoded: Budget::new(
                "bytes decoded",
                len,
                DECODED_PER_BYTE,
                DECODED_PER_BYTE << 20,
            ),
            metadata_budget: Budget::new("bytes of metadata", len, METADATA_PER_BYTE, METADATA_MIN),
            block_budget: Budget::new("blocks of files", len, SIZES_PER_BYTE, SIZES_MIN),
        }
    }

    pub(crate) fn block_size(&self) -> u32 {
        self.block_size
    }

    /// Fills `buf` from byte `at`, which must be within the image.
    pub(crate) fn read(&self, what: &str, at: u64, buf: &mut [u8]) -> Result<()> {
        let end = at.checked_add(buf.len() as u64);
        if end.is_none_or(|end| end > self.bytes_used) {
            return Err(Error::corrupt(
                at,
                format_args!("{what} ends outside of the image"),
            ));
        }
        self.store.read_exact_at(buf, at).map_err(Error::Io)
    }

    /// Returns the block of metadata at byte `at`.
    pub(crate) fn metadata(&self, at: u64) -> Result<Arc<MetadataBlock>> {
        if let Some(block) = self.metadata.get(at) {
            return Ok(block);
        }
        let what = "a block of metadata";
        let mut header = [0; 2];
        self.read(what, at, &mut header)?;
        let header = u16::from_le_bytes(header);
        let len = usize::from(header & !METADATA_PLAIN);
        if len == 0 || len > METADATA_LEN {
            return Err(Error::corrupt(
                at,
                format_args!("{what} of {len} bytes, expected 1 to {METADATA_LEN}"),
            ));
        }
        let is_plain = header & METADATA_PLAIN != 0;
        let bytes = self.decode(what, at + 2, len, is_plain, METADATA_LEN)?;
        let next = at + 2 + len as u64;
        let block = Arc::new(MetadataBlock { bytes, next });
        self.metadata.insert(at, Arc::clone(&block));
        Ok(block)
    }

    /// Returns the stored size that a field at byte `at` states.
    pub(crate) fn stored_size(&self, at: u64, field: u32) -> Result<StoredSize> {
        let len = field & (DATA_PLAIN - 1);
        if field & !(DATA_PLAIN | (DATA_PLAIN - 1)) != 0 || len > self.block_size {
            return Err(Error::corrupt(
                at,
                format_args!("a block of data with the stored size {field:#x}"),
            ));
        }
        Ok(StoredSize {
            len,
            is_plain: field & DATA_PLAIN != 0,
        })
    }

    /// Returns the block of data at byte `at`, which is no hole.
    pub(crate) fn data(&self, at: u64, size: StoredSize) -> Result<Arc<Vec<u8>>> {
        if let Some(block) = self.data.get(at) {
            return Ok(block);
        }
        // Fits: at most 1 MiB.
        let (len, max) = (size.len as usize, self.block_size as usize);
        let block = Arc::new(self.decode("a block of data", at, len, size.is_plain, max)?);
        self.data.insert(at, Arc::clone(&block));
        Ok(block)
    }

    /// Reads `len` stored bytes and decodes them to at most `max`.
    fn decode(
        &self,
        what: &str,
        at: u64,
        len: usize,
        is_plain: bool,
        max: usize,
    ) -> Result<Vec<u8>> {
        self.decoded.take(max as u64)?;
        if is_plain {
            let mut bytes = vec![0; len];
            self.read(what, at, &mut bytes)?;
            return Ok(bytes);
        }
        let mut context = self.context();
        context.input.resize(len, 0);
        let mut bytes = vec![0; max];
        let decoded = self
            .read(what, at, &mut context.input)
            .map(|()| context.decompressor.decode(&context.input, &mut bytes));
        let mut contexts = self.contexts.lock().unwrap_or_else(PoisonError::into_inner);
        contexts.push(context);
        drop(contexts);
        match decoded? {
            Some(n) if n > 0 => {
                bytes.truncate(n);
                Ok(bytes)
            }
            _ => Err(Error::corrupt(
                at,
                format_args!("{what} cannot be decoded as {:?}", self.compressor),
            )),
        }
    }

    fn context(&self) -> Context {
        let mut contexts = self.contexts.lock().unwrap_or_else(PoisonError::into_inner);
        contexts.pop().unwrap_or_else(|| Context {
            decompressor: Decompressor::new(self.compressor),
            input: Vec::new(),
        })
    }
}
