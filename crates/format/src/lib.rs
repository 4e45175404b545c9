//! EROFS on disk, pure over bytes: no file, no clock, no thread.
//!
//! One room per structure: the raw struct, the decoded view, encode, verify and their tests live in one file. Every
//! decoder takes foreign bytes and returns an [`Error`]; nothing here panics on what an image contains. Facts come
//! from the public description of the format (`docs/reference/format/README.md), which names the kernel release of each feature.

#![no_std]
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::indexing_slicing, clippy::unwrap_used))]

extern crate alloc;

pub mod chunk;
pub mod cluster;
pub mod config;
pub mod device;
pub mod dirent;
pub mod error;
pub mod features;
pub mod inode;
pub mod superblock;
pub mod units;
pub mod xattr;

mod wire;

pub use error::{Error, Kind, Result};
pub use units::{BlockAddr, BlockBits, ByteLen, DeviceId, Nid};
