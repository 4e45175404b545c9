//! An IPLFS volume as a writable FUSE filesystem.
//!
//! | module | content |
//! |---|---|
//! | `mount` | starts and joins the threads of a mount |
//! | `session` | reads requests from io_uring or `/dev/fuse`, and sends replies |
//! | `operations` | one function per request |
//! | `durability` | fsync, checkpoints and discards |
//! | `group_flush` | one device flush for all waiting requests |
//! | `lseek`, `seek` | SEEK_DATA and SEEK_HOLE |
//! | `project` | project identifiers through ioctl |
//! | `server` | the shared state and its lock |
//! | `reply`, `fields` | encoding of replies, decoding of requests |
//!
//! * The kernel caches names forever and writes its page cache back at any time, because this mount is the only writer.
//! * An inode is held while the kernel knows its number. So open files without a name live on, and no OPEN is needed.
//! * One lock guards the volume. Reads of data, flushes and discards run outside it.
//! * A panic ends as EIO, and so does every later request: the state in memory is not trustworthy then.

mod durability;
mod fields;
mod group_flush;
mod lseek;
mod mount;
mod operations;
mod project;
mod reply;
mod seek;
mod server;
mod session;

pub use mount::VolumeMount;
pub use server::{SYNC_EVERY, VolumeServer};
