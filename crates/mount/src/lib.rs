//! Adapters that FUSE serves: an EROFS image and an IPLFS volume.
//!
//! | module | filesystem |
//! |---|---|
//! | [`image`] | an EROFS image, read-only; [`errno`] maps its errors, [`memory_pressure`] shrinks its caches |
//! | [`volume`] | an IPLFS volume, writable |
//!
//! Protocol, sessions and transports are in `tuff-fuse`.

pub mod errno;
mod hand_off;
pub mod image;
pub mod memory_pressure;
pub mod volume;

pub use image::{ImageFs, OwnerOverride, StoreCounters};
