//! IPLFS volumes: a log-structured filesystem without garbage collection over a practically infinite address space.
//!
//! Six logs and a metadata area each own an area of a 61-bit block address space and only ever grow; no block is written twice, so
//! nothing is ever cleaned. Space comes back by discards: of what a checkpoint no longer needs, in the order and under the rules of
//! docs/iplfs/design.md. The structures on the device are in docs/iplfs/spec.md and in [`disk`].
//!
//! ```
//! use std::sync::Arc;
//! use tuff_iplfs::{Caller, FormatOptions, MountOptions, Nid, Volume, mem::MemDevice, mode};
//!
//! let device: Arc<MemDevice> = Arc::new(MemDevice::new());
//! Volume::format(device.clone(), &FormatOptions::new([1; 16], [2; 16], 1 << 20))?;
//! let mut volume = Volume::mount(device.clone(), MountOptions::default())?;
//! let caller = Caller::default();
//! let file = volume.create(Nid::ROOT, b"hello", mode::FILE | 0o644, 0, &caller)?.ino;
//! volume.write(file, 0, b"world", caller.now)?;
//! volume.unmount()?;
//! let mut volume = Volume::mount(device, MountOptions::default())?;
//! let file = volume.lookup(Nid::ROOT, b"hello")?;
//! assert_eq!(volume.read(file, 0, 100)?, b"world");
//! # Ok::<(), tuff_iplfs::Error>(())
//! ```
#![forbid(unsafe_code)]

pub mod acl;
pub mod areas;
mod attr;
pub mod backend;
mod check;
mod commit;
mod dead;
pub mod device;
mod dir;
mod discard;
pub mod disk;
mod dispatch;
mod error;
mod file;
mod finding;
mod fsync;
mod hash;
mod map;
pub mod mem;
mod mount;
mod namei;
mod nat;
mod options;
mod pages;
mod quota;
mod recovery;
mod repair;
mod room;
mod ship;
mod snapshot;
mod space;
mod volume;

pub use areas::{Addr, BLOCK_SIZE, Block, Geometry, Log, Nid};
pub use attr::{Attr, SetAttr, SetXattr};
pub use check::{CheckOptions, Report, check};
pub use commit::Checkpoint;
pub use device::BlockDevice;
pub use dir::DirEntry;
pub use discard::DiscardMode;
pub use disk::inode::{Time, mode};
pub use disk::snapshot::Snapshot;
pub use disk::xattr::Xattrs;
pub use dispatch::{Discarded, Discards};
pub use error::{Errno, Error, Result};
pub use file::{Allocate, ReadPlan, SIZE_MAX};
pub use finding::Finding;
pub use fsync::Fsync;
pub use mount::{is_unmounted, read_superblock};
pub use namei::Rename;
pub use options::{Caller, FormatOptions, MountOptions, Rules};
pub use quota::{Limit, Subject, Usage};
pub use repair::{Repaired, WentBack, rebuild, repair};
pub use ship::{Received, Sent, Stream};
pub use space::Space;
pub use volume::{Stats, Volume};
