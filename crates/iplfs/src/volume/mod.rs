//! Mounted volume: its state, and the operations that make it durable.

pub(crate) mod admission;
mod checkpoint;
pub(crate) mod claim_records;
mod claims;
pub(crate) mod difference;
mod discards;
mod flatten;
pub(crate) mod fork_points;
mod fsync;
pub(crate) mod lineage;
mod mount;
pub(crate) mod preallocation;
pub(crate) mod promise_records;
pub(crate) mod promises;
mod release;
pub(crate) mod snapshot_records;
pub(crate) mod snapshots;
pub(crate) mod state;
mod statfs;
pub(crate) mod unlisted;

pub use admission::Space;
pub use discards::{Discarded, Discards};
pub use fsync::Fsync;
pub use release::{Release, Released};
pub use state::{Stats, Volume};
pub use statfs::Statfs;
