//! Adapters that FUSE serves: an EROFS image, an export of image files and an IPLFS volume; and mounts of the kernel's EROFS.
//!
//! | module | filesystem |
//! |---|---|
//! | [`image`] | an EROFS image, read-only; [`errno`] maps its errors, [`memory_pressure`] shrinks its caches |
//! | [`export`] | image files from stores, for mounts of the kernel's EROFS, which [`kernel_erofs`] makes |
//! | [`volume`] | an IPLFS volume, writable |
//!
//! Protocol, sessions and transports are in `tuff-fuse`.

pub mod errno;
pub mod export;
pub mod image;
pub mod kernel_erofs;
pub mod memory_pressure;
pub mod volume;

pub use export::ExportFs;
pub use image::{ImageFs, OwnerOverride, StoreCounters};
