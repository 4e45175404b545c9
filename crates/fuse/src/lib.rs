//! FUSE: the kernel's protocol, sessions and their transports, for any filesystem.
//!
//! ```text
//!  kernel ──► transport     io_uring or /dev/fuse                        transport/, schedule/
//!               └► decoder       bytes → operation with its arguments      request.rs, protocol.rs
//!               └► service       operation → reply                        service.rs, reply.rs
//!                    └► filesystem    typed operations                   filesystem.rs, handler.rs
//! ```
//!
//! A transport knows no operation and a [`Service`] no transport. [`Handler`] is the service of a read-only
//! [`Filesystem`], which knows no protocol. [`Session`] connects them. [`mountpoint`] mounts a connection at a directory and unmounts it, [`holders`] finds
//! what keeps it then. [`counters`] hold the numbers that [`metrics`] exports, and [`schedule`] places threads on processors.

pub mod counters;
mod fields;
pub mod filesystem;
pub mod handler;
pub mod holders;
pub mod log;
pub mod metrics;
pub mod mountpoint;
pub mod negotiation;
pub mod protocol;
pub mod reply;
pub mod request;
pub mod schedule;
pub mod service;
pub mod session;
pub mod transport;

pub use filesystem::Filesystem;
pub use handler::Handler;
pub use log::Log;
pub use schedule::cpu_latency::CpuLatencyMode;
pub use service::Service;
pub use session::{Session, SessionOptions};
