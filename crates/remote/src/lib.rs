//! Images behind URLs, as stores for the reader: HTTP, S3, OCI registries, local files.
//!
//! ```text
//!  Location ──► source ──► fetch ──► verifier ──► cache ──► ReadAt
//!  URL          ranges     queue     dm-verity    disk
//! ```
//!
//! * [`Location`]: address of an image. Its text form has no credentials.
//! * [`open`]: opens an image whose identity (digest or ETag) stays the same. A replaced object is an error.
//! * `source`: ranges over HTTP; signatures of S3; manifests and tokens of registries.
//! * `fetch`: single flight, coalescing, readahead, a bound on connections.
//! * `verifier`: chunks are verified before they are stored or returned, if the root hash is known.
//! * `cache`: sparse files that processes share, bounded in size.
//!
//! This is the only crate with an async runtime, TLS and network clients. Its interface is blocking.

mod cache;
mod client;
mod error;
mod fetch;
mod first_reads;
mod location;
mod open;
mod options;
mod retry;
mod runtime;
mod source;
mod store;
mod verifier;

pub use error::{Error, Kind, Result};
pub use location::Location;
pub use open::open;
pub use options::{Options, default_cache};
pub use retry::RetryPolicy;
