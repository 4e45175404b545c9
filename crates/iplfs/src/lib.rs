//! IPLFS volumes: a log-structured filesystem without garbage collection, over a practically infinite address space.
//!
//! Six logs and a metadata log each own an area of a 61-bit block address space and only grow. No block is written
//! twice, so nothing is ever cleaned. Space is reclaimed by discarding the blocks that no checkpoint needs, in the
//! order and under the rules of docs/design/discard.md.
//!
//! The on-disk structures are in [`disk`] and in docs/reference/volume-format.md.
//!
//! | module | content |
//! |---|---|
//! | `disk` | on-disk structures, pure over bytes |
//! | `device`, `backend` | block devices: the contract, and its implementations |
//! | `log`, `nodes`, `checkpoint`, `quota` | parts of the state of a mounted volume |
//! | `volume` | the mounted volume: admission, appending, checkpoints, discards, snapshots |
//! | `vfs` | operations on files and directories |
//! | `branch` | forks of a volume: making, listing, deleting, renaming |
//! | `recovery`, `check`, `repair`, `ship` | crash recovery, full check, repair, streams of snapshots |
//!
//! ```
//! use std::sync::Arc;
//! use tuff_iplfs::{Caller, FormatOptions, MountOptions, Nid, Volume, backend::MemDevice, mode};
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

pub mod backend;
mod branch;
mod check;
mod checkpoint;
mod device;
pub mod disk;
mod error;
mod finding;
mod log;
mod nodes;
mod options;
mod quota;
mod recovery;
mod repair;
mod ship;
mod vfs;
mod volume;

pub use branch::{
    BranchInfo, Fork, branches, delete_branch, flatten_branch, fork, forks_left,
    is_snapshot_mounted, mount_snapshot, promote_branch, rollback_branch,
};
pub use check::{CheckOptions, Report, check};
pub use checkpoint::pack::{is_unmounted, read_superblock};
pub use checkpoint::state::Checkpoint;
pub use device::{BlockDevice, BranchDevice};
pub use disk::address::{BLOCK_SIZE, Block, BlockAddr, Geometry, Log, Nid};
pub use disk::inode::{Time, mode};
pub use disk::snapshot::Snapshot;
pub use disk::xattr::Xattrs;
pub use error::{Errno, Error, Result};
pub use finding::Finding;
pub use options::{Caller, DiscardMode, DiscardRule, FormatOptions, MountOptions};
pub use quota::{Limit, Subject, Usage};
pub use repair::{CheckpointFallback, Repaired, rebuild, repair};
pub use ship::{Received, Sent, Stream};
pub use vfs::acl;
pub use vfs::attr::{Attr, SetAttr, SetXattr};
pub use vfs::dir::DirEntry;
pub use vfs::file::{Allocate, ReadPlan, SIZE_MAX};
pub use vfs::namei::Rename;
pub use volume::{Discarded, Discards, Fsync, Release, Released, Space, Statfs, Stats, Volume};
