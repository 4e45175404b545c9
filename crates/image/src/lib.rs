//! EROFS images: read, check, extract and build them.

pub mod build;
pub mod check;
pub mod diff;
pub mod dump;
pub mod error;
pub mod extract;
mod open_files;
pub mod read;
pub mod serve;
pub mod suggest;
pub mod tar;
mod threads;
pub mod verity;
pub mod walk;

pub use error::{Error, Result};
pub use threads::THREADS_MAX;
