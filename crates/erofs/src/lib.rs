//! Reader of EROFS images: reads, serves, checks, dumps, extracts and compares them, and writes them as tar.
//!
//! The builder is the crate `tuff-mkfs`.

pub mod check;
pub mod diff;
pub mod dump;
pub mod error;
pub mod extract;
pub mod fingerprint;
mod open_files;
pub mod read;
pub mod serve;
pub mod tar;
pub mod threads;
pub mod verity;
pub mod walk;

pub use error::{Error, Remedy, Result};
pub use threads::THREADS_MAX;
