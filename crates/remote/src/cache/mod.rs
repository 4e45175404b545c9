//! Cache of remote images on disk, shared by processes.
//!
//! ```text
//! DIR/KEY.image   sparse file: chunks at their places in the image
//! DIR/KEY.state   a checksum and a generation for each chunk
//! DIR/KEY.tree    hash tree of the image, if its root hash is known
//! DIR/KEY.hold    locked while the complete image is used as a plain file, which keeps its chunks from eviction
//! DIR/lock        held while chunks are evicted
//! ```
//!
//! KEY is a digest of the identity of the image, so a replaced image has another key. A process holds a shared lock on
//! the state of an image that it uses; only images without such a lock are removed as a whole.

mod directory;
mod hold;
mod image;
mod state;

pub(crate) use directory::Directory;
pub(crate) use hold::Hold;
pub(crate) use image::ImageCache;

/// Unit of presence, verification and eviction. Unit: bytes.
pub(crate) const CHUNK: u64 = 128 << 10;
