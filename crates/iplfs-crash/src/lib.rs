//! Crash tests of IPLFS volumes. Development only.
//!
//! A [`CrashDisk`] records every write, discard and flush of a run. From the record, every state is built that a
//! power loss could have left: any subset of the events that were not flushed, torn sectors, discards applied
//! completely, partially or not at all. Each state is mounted, compared with a [`model::Model`], checked, drained,
//! and compared with the blocks on the device.
//!
//! The harness knows nothing about the internals of the filesystem. The guarantee that it verifies is stated in
//! [`oracle`].
//!
//! | module | content |
//! |---|---|
//! | `disk` | device that records its events |
//! | `states` | states that a power loss could leave |
//! | `model` | simplest possible filesystem, and the visible tree of a volume |
//! | `workload` | operations on a volume and the model |
//! | `oracle` | states that are allowed after a crash, and campaigns over workloads |
//! | `fixture`, `verify` | volumes and verifications that tests share |
//! | `scenario` | properties that depend on one discard rule each |

#![forbid(unsafe_code)]

mod disk;
pub mod fixture;
pub mod model;
pub mod oracle;
pub mod scenario;
mod states;
pub mod verify;
pub mod workload;

pub use disk::{CrashDisk, Event, Written};
pub use oracle::{Campaign, Tally};
pub use states::states;
