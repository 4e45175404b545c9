//! Where every byte of an image belongs.
//!
//! ```text
//!  tables, inodes, indexes, data ──► regions, sorted ──► one item per region, and one per gap ──► space table
//!            regions.rs                                              item.rs                       space.rs
//! ```
//!
//! Invariants:
//!
//! * The items of an area follow each other without gaps: what no structure claims is an item of its own.
//! * An item says all of its bytes: as fields that encode to them again, in hexadecimal where they do not, as a digest
//!   where they are data.

mod item;
mod layout_stats;
mod regions;
mod space;

pub use item::{Fields, Item, Items, Value};
pub use layout_stats::{AlgorithmStats, GroupStats, LayoutStats, LayoutStatsOptions};
pub use regions::{Area, Kind, Region, Regions};
pub use space::{Row, SpaceTable};
