//! Repair of damaged volumes.

mod names;
mod nodes;
mod run;
mod salvage;
mod scan;
mod snapshots;

pub use run::{rebuild, repair};
pub use salvage::{CheckpointFallback, Repaired};
