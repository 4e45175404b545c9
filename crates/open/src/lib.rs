//! Opens EROFS images: one descent from a reference to an image, for the command and for every language.
//!
//! ```text
//!  ImageRef ──► Container ──► integrity ──► devices ──► OpenImage
//!  path, URL    file, disk,   root hash,    beside it,  reads are
//!               layers        signature     given       verified
//! ```
//!
//! * [`ImageRef`]: path or URL, parsed once. Its text form has no credentials.
//! * [`Container`]: file, disk or remote object that holds the image, opened once, with what verifies it.
//! * [`OpenImage`]: image whose reads are verified, if a root hash or a certificate was given.
//! * [`open`]: all of the descent.
//!
//! An image that is verified has only devices that are verified, too. With the feature `remote`, images behind URLs are read.

#[cfg(all(unix, feature = "build"))]
mod build;
#[cfg(unix)]
mod certificate;
#[cfg(unix)]
mod container;
#[cfg(unix)]
pub mod devices;
#[cfg(unix)]
mod flat;
#[cfg(unix)]
mod image;
#[cfg(unix)]
mod options;
#[cfg(unix)]
mod reference;
#[cfg(unix)]
pub mod remote;
#[cfg(unix)]
mod root;
mod stores;
#[cfg(unix)]
mod tree;

#[cfg(all(unix, feature = "build"))]
pub use build::open_bases;
#[cfg(unix)]
pub use certificate::certificate;
#[cfg(unix)]
pub use container::Container;
#[cfg(unix)]
pub use flat::FlatFiles;
#[cfg(unix)]
pub use image::{OpenImage, open};
#[cfg(unix)]
pub use options::{CacheOptions, Device, Integrity, OnRepair, OpenOptions, Watch};
#[cfg(unix)]
pub use reference::{ImageRef, ImageUrl};
#[cfg(unix)]
pub use remote::RemoteImage;
#[cfg(unix)]
pub use root::parse_root;
pub use stores::open_stores;
#[cfg(unix)]
pub use tree::ImageTree;
