//! Snapshots on their way to another device: sending and receiving streams.

mod delta;
mod receive;
mod send;

pub use receive::{Received, Stream};
pub use send::Sent;
