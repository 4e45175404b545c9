//! Reader of SquashFS 4.0 images: all compressors, all types of inodes, fragments, holes and extended attributes.
//!
//! ```text
//! superblock ──► inodes ──► entries of directories ──► inodes ...          blocks of metadata, 8 KiB
//!                      └──► stored sizes ──► blocks of data, 4 KiB to 1 MiB
//!                      └──► fragment table ──► fragments: ends of files, a block for many
//!                      └──► xattr table ──► names and values
//! ```
//!
//! The image is not trusted. Each length is compared with its bound before memory is allocated; directories are entered once;
//! and what names, attributes and decoded bytes cost in all is bounded by the length of the image.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let store = tuff_store::FileStore::open("old.squashfs".as_ref())?;
//! let image = tuff_squashfs::Image::open(store)?;
//! for entry in image.walk() {
//!     println!("{}", entry?.path.escape_ascii());
//! }
//! # Ok(())
//! # }
//! ```

mod blocks;
mod budget;
mod bytes;
mod cache;
mod compressor;
mod content;
mod cursor;
mod directory;
mod error;
mod image;
mod inode;
mod lzo;
mod superblock;
mod tables;
mod walk;
mod xattr;

pub use compressor::Compressor;
pub use content::FileContent;
pub use error::{Error, Result};
pub use image::Image;
pub use inode::{Device, FileLayout, Inode, InodeKind, Listing};
pub use superblock::{MAGIC, Superblock};
pub use walk::{Entry, Walk};
pub use xattr::Xattr;
