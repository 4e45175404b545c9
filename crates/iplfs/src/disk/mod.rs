//! On-disk structures, one file each. Little endian; every metadata block carries a CRC32C.
//!
//! Functions here are pure over bytes: no device, no clock, no state.

pub mod address;
pub mod branch;
pub mod checkpoint;
pub mod dentry;
pub(crate) mod hash;
pub mod inode;
pub mod nat;
pub mod node;
pub mod slot;
pub mod snapshot;
pub mod stream;
pub mod superblock;
pub mod wire;
pub mod xattr;
