//! An IPLFS volume as a writable FUSE filesystem.
//!
//! | module | content |
//! |---|---|
//! | `service` | answers at once, or later after a flush, a checkpoint or write-back |
//! | `operations` | one function or arm per request |
//! | `durability` | fsync, checkpoints and discards |
//! | `control` | snapshots and forks of a mounted volume |
//! | `drain` | makes durable what the kernel has not written yet |
//! | `ending` | the end of a volume whose mount lives on |
//! | `group_flush` | one device flush for all waiting requests |
//! | `gate` | the kernel asks before it accepts data while space is short |
//! | `caller` | the system call of a thread |
//! | `write_back` | work that waits until the kernel has written pages back |
//! | `seek` | SEEK_DATA and SEEK_HOLE |
//! | `idle` | space that deletes made free goes to the host |
//! | `project` | project identifiers through ioctl |
//! | `server` | the shared state and its lock |
//! | `statx` | the time of creation |
//! | `discard_policy` | the time at which discards are issued |
//! | `fields` | attributes and their changes, between the protocol and the volume |
//!
//! * The kernel caches names forever and writes its page cache back at any time, because this mount is the only writer.
//! * An inode is held while the kernel knows its number. So open files without a name live on, and no OPEN is needed.
//! * One lock guards the volume. Reads of data, flushes and discards run outside it.
//! * A panic ends as EIO, and so does every later request: the state in memory is not trustworthy then.

mod caller;
mod control;
mod control_request;
mod discard_policy;
mod drain;
mod durability;
mod ending;
mod fields;
mod gate;
mod group_flush;
mod idle;
mod operations;
mod project;
mod seek;
mod server;
mod service;
mod statx;
mod write_back;

pub use control_request::Control;
pub use discard_policy::DiscardPolicy;
pub use server::{SYNC_EVERY, VolumeServer};
