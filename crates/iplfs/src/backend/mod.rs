//! Devices that hold a volume: a directory of sparse zone files, one sparse file or thin block device, or memory.
//!
//! Those on a host keep an exclusive lock for as long as they are open, so that a volume is never mounted twice.

mod host;
mod host_file;
mod memory;
mod open;
mod zone_dir;

pub use host_file::FileDevice;
pub use memory::{Blocks, MemDevice};
pub use open::open;
pub use zone_dir::ZoneDir;
