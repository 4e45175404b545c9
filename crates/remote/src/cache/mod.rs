//! Cache of remote images on disk, shared by processes.
//!
//! ```text
//! DIR/KEY.image   sparse file: chunks and hash blocks at their places in the image
//! DIR/KEY.state   a checksum and a generation for each chunk
//! DIR/KEY.tree    chunk index of the image, if it has no root hash
//! DIR/KEY.hold    locked while the complete image is used as a plain file, which keeps its chunks from eviction
//! DIR/HASH.doc    a manifest or another small document, or what a tag or URL named last
//! DIR/lock        held while chunks are evicted
//! DIR/cache.format  number of this format; images in an older one are removed
//! ```
//!
//! The directory and its files belong to this user alone, as [`PrivateDir`](tuff_store::PrivateDir) checks. KEY is a digest of
//! the place and the identity of the image: bytes that were not verified are read under the place that they came from only,
//! and a replaced image has another key. A process holds a shared lock on
//! the state of an image that it uses; only images without such a lock are removed as a whole.

mod directory;
mod documents;
mod hold;
mod image;
mod state;

pub(crate) use directory::Directory;
pub(crate) use documents::Documents;
pub(crate) use hold::Hold;
pub(crate) use image::ImageCache;

/// Length of the chunks of an image: units of presence, verification and eviction. Unit: bytes.
///
/// A hash tree verifies short ones, so that a reader behind a slow link waits for little more than it wants.
pub(crate) const CHUNK: u64 = 32 << 10;

/// The same of an image without a hash tree: that of a chunk index. Unit: bytes.
pub(crate) const LONG_CHUNK: u64 = 128 << 10;

/// Largest image: 2^31 blocks of 4 KiB, as the format allows. Unit: bytes.
pub(crate) const IMAGE_MAX: u64 = 8 << 40;
