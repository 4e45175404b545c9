//! Devices that store a volume: a directory of sparse zone files, one sparse file or thin block device, a block map on
//! a file or block device of ordinary size, or memory.
//!
//! The devices on a host hold an exclusive lock while they are open, so that a volume is never mounted twice.

pub(crate) mod branch;
mod durable;
mod host;
mod host_file;
mod mapped;
mod memory;
mod open;
pub(crate) mod snapshot_lock;
pub(crate) mod space;
mod zone_dir;

pub use branch::{MAIN, NAME_MAX};
#[cfg(feature = "broken-rules")]
#[doc(hidden)]
pub use durable::kill_after;
pub use host_file::FileDevice;
pub use mapped::MappedDevice;
pub use memory::{Blocks, MemDevice};
pub use open::{open, open_branch};
pub use zone_dir::ZoneDir;
