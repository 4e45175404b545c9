//! Reader of EROFS images: reads, serves, checks, dumps, extracts and compares them, and writes them as tar.
//!
//! The builder is the crate `tuff-mkfs`.
//!
//! # Examples
//!
//! Open an image and walk through it:
//!
//! ```no_run
#![doc = include_str!("../examples/walk.rs")]
//! ```
//!
//! Read a range of a file:
//!
//! ```no_run
#![doc = include_str!("../examples/read_range.rs")]
//! ```
//!
//! Extract one path:
//!
//! ```no_run
#![doc = include_str!("../examples/extract_path.rs")]
//! ```
//!
//! Check an image:
//!
//! ```no_run
#![doc = include_str!("../examples/check.rs")]
//! ```
//!
//! Serve an image to many threads:
//!
//! ```no_run
#![doc = include_str!("../examples/serve_threads.rs")]
//! ```
//!
//! Read in an asynchronous program:
//!
//! ```no_run
#![doc = include_str!("../examples/async_ranges.rs")]
//! ```

#![cfg_attr(
    not(feature = "tools"),
    allow(dead_code, reason = "some methods of the reader serve the tools only")
)]

#[cfg(feature = "tools")]
pub mod check;
#[cfg(feature = "tools")]
pub mod diff;
#[cfg(feature = "tools")]
pub mod dump;
pub mod error;
#[cfg(feature = "tools")]
pub mod extract;
#[cfg(feature = "tools")]
pub mod fingerprint;
#[cfg(feature = "tools")]
mod open_files;
pub mod read;
pub mod serve;
#[cfg(feature = "tools")]
pub mod tar;
pub mod threads;
#[cfg(feature = "verity")]
pub mod verity;
pub mod walk;

pub use error::{Error, Place, Remedy, Result};
pub use threads::THREADS_MAX;
