//! C interface of the reader and the builder of EROFS images. `include/tuff.h` is generated from this crate.
//!
//! Conventions:
//!
//! * Handles are opaque. A function that creates one stores it at the address in its last but one argument; the matching
//!   `_close` or `_free` function releases it and accepts NULL.
//! * A function that can fail returns a [`tuff_status`], and describes the failure in the [`tuff_error`] at its last
//!   argument, unless that is NULL.
//! * Paths and names are bytes without a NUL, as in Linux. They need not be UTF-8.
//! * Threads: a [`tuff_image`] and a [`tuff_ranges`] may be used by any number of threads at once. A handle of another
//!   type may move between threads, but only one thread may use it at a time. No function has global state but the network client.
//! * No panic crosses the interface: it becomes [`tuff_status::TUFF_PANIC`]. The handle must then be closed.

#![allow(
    non_camel_case_types,
    reason = "the names are those of the C interface"
)]

mod allocation;
#[cfg(feature = "full")]
mod builder;
mod entries;
mod error;
mod image;
#[cfg(feature = "full")]
mod open;
mod pointers;
mod ranges;
#[cfg(feature = "full")]
mod tools;

pub use allocation::*;
#[cfg(feature = "full")]
pub use builder::*;
pub use entries::*;
pub use error::*;
pub use image::*;
#[cfg(feature = "full")]
pub use open::*;
pub use ranges::*;
#[cfg(feature = "full")]
pub use tools::*;

use std::ffi::c_char;

/// Version of the library, such as "0.2.0". The string is static.
#[unsafe(no_mangle)]
pub extern "C" fn tuff_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}
