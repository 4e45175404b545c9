//! Test data and opened trees.

use std::io;
use std::sync::Arc;
use tuff_store::{MemStore, ReadAt};
use tuff_verity::{Root, TreePlace, Verified};

/// Pseudo-random bytes, the same on every run.
pub(crate) fn content(len: usize) -> Vec<u8> {
    let mut x = 1u64;
    let words = std::iter::repeat_with(|| {
        x = x
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        ((x >> 33) as u32).to_le_bytes()
    });
    words.flatten().take(len).collect()
}

/// Opens data that is followed by its tree.
pub(crate) fn open(bytes: &[u8], at: u64, root: Root) -> io::Result<Verified> {
    open_store(Arc::new(MemStore::new(bytes.to_vec())), at, root)
}

/// Opens a store with data that is followed by its tree. The data claims what the tree has digests for.
pub(crate) fn open_store(store: Arc<dyn ReadAt>, at: u64, root: Root) -> io::Result<Verified> {
    Verified::open(
        Arc::clone(&store),
        TreePlace::appended(store, at),
        root,
        |verified| Ok(verified.size()),
    )
}

/// Returns a list of one range.
pub(crate) fn one(range: std::ops::Range<u64>) -> Vec<std::ops::Range<u64>> {
    std::iter::once(range).collect()
}
