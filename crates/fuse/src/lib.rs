//! FUSE: the kernel's protocol, sessions and their transports, for any filesystem.
//!
//! ```text
//!  kernel ──► transport     io_uring or /dev/fuse                        transport/, schedule/
//!               └► handler       bytes of a request → bytes of a reply   handler.rs, protocol.rs
//!                    └► filesystem    typed operations                   filesystem.rs
//! ```
//!
//! A transport knows no operation, a handler no file descriptor and a filesystem no protocol: each is tested alone.
//! [`Session`] connects them. [`mountpoint`] mounts a connection at a directory and unmounts it. [`counters`] hold
//! the numbers that [`metrics`] exports, and [`schedule`] places threads on processors.

pub mod counters;
pub mod filesystem;
pub mod handler;
pub mod log;
pub mod metrics;
pub mod mountpoint;
pub mod negotiation;
pub mod protocol;
pub mod schedule;
pub mod session;
pub mod transport;

pub use filesystem::Filesystem;
pub use handler::Handler;
pub use log::Log;
pub use schedule::cpu_latency::CpuLatencyMode;
pub use session::{Session, SessionOptions};
