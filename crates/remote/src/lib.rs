//! Images behind URLs, as stores for the reader: HTTP, S3, OCI registries, local files.
//!
//! ```text
//!  Location ──► source ──► fetch ──► verifier ──► cache ──► ReadAt
//!  URL          ranges     queue     dm-verity    disk
//! ```
//!
//! * [`Location`]: address of an image. Its text form has no credentials.
//! * [`open`]: opens an image whose identity (digest or ETag) stays the same. A replaced object is an error.
//! * [`RemoteStore`]: reads, prefetch of ranges, background fill, and the complete image as a plain file.
//! * [`open_images`]: images of several stores: EROFS images of a manifest, each with its devices.
//! * [`layers`]: all EROFS layers of an image in a registry.
//! * `source`: ranges over HTTP; signatures of S3; manifests and tokens of registries.
//! * `fetch`: single flight, coalescing, priorities, readahead, hedging, a bound on what is in flight.
//! * `verifier`: chunks are verified before they are stored or returned, if the root hash is known.
//! * `cache`: sparse files that processes share, bounded in size.
//! * `shared`: blocks that other images in the cache have are copied instead of fetched.
//! * [`push`]: uploads an image to a registry or a bucket.
//! * [`trusted`]: root hash of an image by a signature that comes with it.
//!
//! This is the only crate with an async runtime, TLS and network clients. Its interface is blocking.

mod aws_profile;
mod beside;
mod bucket;
mod cache;
mod chunk_index;
mod client;
mod device_list;
mod error;
mod feed;
mod fetch;
mod first_reads;
#[doc(hidden)]
pub mod fuzzing;
mod image;
mod json;
mod layers;
mod layout;
mod location;
mod open;
mod options;
mod origin;
mod profile;
mod pull;
mod push;
mod registry;
mod renewal;
mod retry;
mod runtime;
mod shared;
mod source;
mod stats;
mod store;
mod verifier;

pub use beside::trusted;
pub use bucket::bucket_login;
pub use error::{Error, Kind, Result};
pub use image::{OpenImage, open_images};
pub use layers::{Layer, layers};
pub use layout::copy_layout;
pub use location::Location;
pub use open::open;
pub use options::{Options, default_cache};
pub use profile::profile;
pub use pull::WholeImage;
pub use push::{LayerImage, LayerMedia, LayerTree, PushOptions, Pushed, PushedLayer, Step, push};
pub use registry::registry_login_files;
pub use retry::RetryPolicy;
pub use stats::Stats;
pub use store::{CompleteFile, RemoteStore};
pub use tuff_signature::{Certificate, Signer};
