//! Arguments and result of an upload.

use crate::retry::RetryPolicy;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use tuff_signature::Signer;
use tuff_store::ReadAt;
use tuff_verity::Root;

/// EROFS image to upload, which must not change meanwhile.
pub struct LayerImage {
    /// The image, with its hash tree if it has one.
    pub store: Arc<dyn ReadAt>,
    /// Hash tree after the image.
    pub tree: Option<LayerTree>,
    /// Metadata that a start reads first, which readers then ask for with the first bytes. `None`: all metadata. Unit: bytes.
    pub start_metadata: Option<Range<u64>>,
    /// False for a device of plain bytes, such as a file of chunks.
    pub is_image: bool,
    /// Devices that hold data of it, in the order of its device table. They have no devices of their own.
    pub devices: Vec<LayerImage>,
}

/// Hash tree of an image.
#[derive(Clone, Debug)]
pub struct LayerTree {
    /// Position of the tree. Unit: bytes.
    pub offset: u64,
    /// Root hash of the tree.
    pub root: Root,
    /// Size of its blocks. Unit: bytes.
    pub block: u32,
}

/// Media type of layers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LayerMedia {
    /// `application/vnd.erofs`, of the EROFS image specification.
    #[default]
    Erofs,
    /// `application/vnd.erofs.layer.v1`, which containerd 2.4 reads.
    Containerd,
}

/// Options for an upload.
#[derive(Clone, Default)]
pub struct PushOptions {
    /// Media type of layers in a registry.
    pub media: LayerMedia,
    /// Platform of the image: OS/ARCHITECTURE[/VARIANT]. `None`: Linux on this machine's architecture.
    pub platform: Option<String>,
    /// Configuration of a container image in JSON, whose platform and settings the image takes over.
    pub config: Option<Vec<u8>>,
    /// Access profile that accompanies the image.
    pub profile: Option<Vec<u8>>,
    /// Parts of layers that a start reads, in the order in which they are wanted: number of the layer, and bytes of it. A manifest states
    /// as much of it as fits.
    pub start: Vec<(usize, Range<u64>)>,
    /// Repository of the same registry whose blobs are mounted instead of sent, if it has them.
    pub mount_from: Option<String>,
    /// Signs the root hashes of the layers.
    pub signer: Option<Arc<Signer>>,
    /// Directory of records by which a later process continues an upload to a bucket. `None`: an upload that fails is
    /// removed from the bucket.
    pub records: Option<PathBuf>,
    /// Repetition of failed requests. The deadline counts from the last byte that was sent.
    pub retry: RetryPolicy,
}

/// Result of an upload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pushed {
    /// Digest that the reference names: of the index, the manifest, or the object in a bucket.
    pub digest: String,
    /// Digest of the manifest. `None` in a bucket.
    pub manifest: Option<String>,
    /// Blobs of the layers, in order, each after its devices.
    pub layers: Vec<PushedLayer>,
}

/// Layer that was uploaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PushedLayer {
    /// Digest of the blob.
    pub digest: String,
    /// Size of the blob. Unit: bytes.
    pub size: u64,
    /// Root hash of its hash tree.
    pub root_hash: Option<Root>,
    /// True for a device of the next layer that is none.
    pub is_device: bool,
    /// True if the server had the blob already.
    pub was_present: bool,
}
