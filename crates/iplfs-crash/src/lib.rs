//! Crash testing: what a volume must survive, enumerated.
//!
//! A [`CrashDisk`] records every write, discard and flush of a run. From the record every state is built that a power failure could have left: any subset of
//! what was not flushed, torn sectors, discards that happened, happened in part, or not. Each state is mounted, compared with what
//! a [`model::Model`] says may be seen, checked, drained, and compared with what the device holds.
//!
//! Nothing here knows how the filesystem works inside: the promise it is held to is in [`oracle`].

#![forbid(unsafe_code)]

mod disk;
pub mod model;
pub mod oracle;
pub mod scenario;
mod states;
pub mod workload;

pub use disk::{CrashDisk, Event, Written};
pub use oracle::{Campaign, Tally};
pub use states::states;
