//! Fetching of missing chunks: single flight, coalescing, priorities, readahead, hedging, and a bound on what is in flight.
//!
//! Priorities: chunks that a reader waits for, readahead, the profile, the list of the image, neighbours of what was read, the
//! fill of the rest. A chunk is verified, stored and handed to its readers as soon as it has arrived, while the rest of its
//! request is on its way.

mod chunks;
mod fetcher;
mod fill;
mod pace;
mod queue;
pub(crate) mod shared;
mod transfer;

pub(crate) use fetcher::{Fetcher, never_wait_in_this_thread};
pub(crate) use fill::start as fill;
