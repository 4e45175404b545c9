//! Serving filesystems to the kernel through FUSE.
//!
//! ```text
//!  kernel ──► transport     rings of io_uring, or /dev/fuse           transport/
//!               └► handler       bytes → question → bytes             handler.rs, proto.rs
//!                    └► filesystem    what is asked and answered      fs.rs
//!                         └► image         an EROFS image             image.rs, errno.rs
//! ```
//!
//! A transport knows no operation, a handler no descriptor and a filesystem no protocol: each is tested alone.
//! [`Mount`] is all of it at work: [`mountpoint`] puts a connection under a directory and takes it away; [`counters`] are what `tuff stats` and [`metrics`]
//! show; [`awake`] keeps processors from halting while much is asked.

pub mod awake;
pub mod counters;
pub mod errno;
pub mod fs;
pub mod handler;
pub mod image;
pub mod live;
pub mod log;
pub mod metrics;
pub mod mountpoint;
pub mod proto;
pub mod relief;
mod seat;
pub mod transport;
pub mod volume;

pub use awake::KeepAwake;
pub use fs::Filesystem;
pub use handler::Handler;
pub use image::{ImageFs, Show};
pub use live::{Mount, Serving};
pub use log::Log;
