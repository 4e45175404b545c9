//! Sending and receiving snapshots as streams.

pub(crate) mod delta;
mod receive;
mod send;

pub use receive::{Received, Stream};
pub use send::Sent;
