//! Snapshots on their way to another device: sending and receiving streams.

mod receive;
mod send;
mod tail;

pub use receive::{Received, Stream};
pub use send::Sent;
