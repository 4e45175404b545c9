//! Fetching of missing chunks: single flight, coalescing, priorities, readahead, hedging, and a bound on what is in flight.
//!
//! Priorities: chunks that a reader waits for, readahead, the profile, the fill of the rest.

mod fetcher;
mod fill;
mod incomplete;
mod pace;
mod queue;
pub(crate) mod shared;

pub(crate) use fetcher::{Fetcher, VERIFY_ATTEMPTS};
pub(crate) use fill::start as fill;
