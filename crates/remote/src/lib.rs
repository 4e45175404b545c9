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
//! * `connections`: client and session that all requests for one image share.
//! * `source`: ranges over HTTP; signatures of S3; manifests and tokens of registries.
//! * `fetch`: single flight, coalescing, priorities, readahead, hedging, a bound on what is in flight.
//! * `verify`: chunks are verified before they are stored or returned, if the root hash is known.
//! * `cache`: sparse files that processes share, bounded in size.
//! * `fetch::shared`: blocks that other images in the cache have are copied instead of fetched.
//! * `trace`: requests with their reasons, for `tuff stats --start`.
//! * [`push`]: uploads an image to a registry or a bucket.
//! * [`trusted`]: root hash of an image by a signature that comes with it.
//!
//! This is the only crate with an async runtime, TLS and network clients. Its interface is blocking.

mod address;
mod beside;
mod cache;
mod client;
mod connections;
mod error;
mod fetch;
#[doc(hidden)]
pub mod fuzzing;
mod location;
mod open;
mod options;
mod places;
mod prefix;
mod pull;
mod push;
mod registry;
mod resolve;
mod retry;
mod runtime;
mod source;
mod stats;
mod store;
mod trace;
mod verify;

pub use beside::profile::{profile, stated_profile};
pub use beside::statements::{Statements, statements};
pub use beside::trusted;
pub use error::{Error, Kind, Result};
pub use location::Location;
pub use open::images::{OpenImage, open_images};
pub use open::layers::{Layer, has_layers, layers};
pub use open::open;
pub use options::{Options, default_cache};
pub use prefix::{BucketPrefix, ListedObject};
pub use pull::WholeImage;
pub use pull::layout::copy_layout;
pub use push::{LayerImage, LayerMedia, LayerTree, PushOptions, Pushed, PushedLayer, Step, push};
pub use registry::registry_login_files;
pub use retry::RetryPolicy;
pub use source::bucket::bucket_login;
pub use stats::Stats;
pub use store::{CompleteFile, RemoteStore};
pub use tuff_signature::{Certificate, Signer};
