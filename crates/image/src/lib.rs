//! EROFS images: read, check, extract and build them.

pub mod build;
pub mod check;
pub mod error;
pub mod read;

pub use error::{Error, Result};
