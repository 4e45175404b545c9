//! On-disk structures of EROFS, as pure functions over bytes: no files, no clock, no threads.
//!
//! One file per structure: the raw struct, its decoded form, encoding, checks and tests. Decoders return an
//! [`Error`] for invalid bytes and never panic. Source: `docs/reference/format/README.md`, the project's
//! description of the format.

#![no_std]
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::indexing_slicing, clippy::unwrap_used))]

extern crate alloc;

pub mod chunk;
pub mod claim;
pub mod cluster;
pub mod config;
pub mod device;
pub mod dirent;
pub mod elf;
pub mod error;
pub mod features;
pub mod inode;
pub mod start_list;
pub mod superblock;
pub mod units;
pub mod xattr;

mod wire;

pub use error::{Error, Kind, Result};
pub use units::{BlockAddr, BlockBits, ByteLen, DeviceId, Nid};
